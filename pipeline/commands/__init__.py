"""Options and help of the commands of scripts/, a module each.

They load nothing but the standard library, so that --help needs no .venv.
"""
