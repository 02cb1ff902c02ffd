"""The core: sessions, items as trees, captures, their gate, and files. It knows no framework."""
