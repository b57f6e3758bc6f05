"""Files that text comes from: texts, token ids, archives and downloads."""
