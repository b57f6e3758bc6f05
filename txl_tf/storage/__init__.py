"""Files and folders on a local disk or in an object store: writing, locking, strict reading."""
