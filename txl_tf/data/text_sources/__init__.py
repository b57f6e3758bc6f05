"""Text of the user's own: files, folders, archives of lines, and how they are split."""
