"""Tables of the trials of a search: filtered, ordered, and downloaded."""
