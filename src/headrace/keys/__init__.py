"""Keys of clients: names, limits, and the file that holds them. For the server and whatever stands before it."""
