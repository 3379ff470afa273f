"""A real Kubernetes on this machine: what it is made of, and how it is brought up and taken down."""
