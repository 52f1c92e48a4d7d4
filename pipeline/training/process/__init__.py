"""The process that trains: how it is started, locked, watched and resumed."""
