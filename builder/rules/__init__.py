"""What must hold together, one module a family; a rule is small and pure, Outcome -> findings. registry.py has all."""
