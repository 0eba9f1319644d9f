"""What must hold together, one module a family: each rule small and pure, Outcome -> findings; registry.py lists all."""
