"""Options and help of the commands of scripts/, one module per command.

They load nothing but the standard library, so that --help needs no .venv.
"""
