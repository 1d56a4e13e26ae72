"""What proves schedules, beside `verify.py`: all algorithms at once, mutants, a reference of its own."""
