"""`llm-ray model pull`: a checkpoint from a hub or a bucket into a directory, once, however many pods ask for it.

`source` tells what is meant, `hub` and `s3` fetch it, `directory` has the lock, the claim and the completion marker.
"""
