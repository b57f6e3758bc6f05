"""Files that a data set is prepared from: texts, token ids, archives and downloads."""
