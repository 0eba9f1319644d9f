"""What must hold together, one module a family. A rule is small and pure: Outcome -> findings; registry.py lists them."""
