"""The core: sessions, items as trees, captures, their judge, and files. It knows no framework."""
