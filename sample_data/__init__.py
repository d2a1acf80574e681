"""Invented support tickets: a sentence bank, what writes tickets from it, and the written file."""
