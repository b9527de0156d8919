"""One file per wire dialect; an adapter turns a request into chunks."""
