"""Options and help of the commands of scripts/, one module per command, in the folder of its stage.

They load nothing but the standard library, so that --help needs no .venv.
"""
