"""Files, locks and staging folders, on a local disk or in an object store."""
