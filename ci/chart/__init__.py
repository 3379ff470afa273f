"""Files of the charts that are made from others: values from the app's settings, schemas and docs from values."""
