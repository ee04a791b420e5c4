"""What an option may hold, how a wrong one is reported, and how all of them are explained.

`upstream.config` declares the options; nothing in here knows a single one of them.
"""
