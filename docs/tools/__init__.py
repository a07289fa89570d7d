"""What makes the documents: the generator of the reference, and a hook of MkDocs."""
