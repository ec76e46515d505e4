"""The published tables on chips, read cell by cell and compared with what the targets' files say."""
