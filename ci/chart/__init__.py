"""Files of charts/llm-ray that are made from others: values from the app's settings, schema and docs from values."""
