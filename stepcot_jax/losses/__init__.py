"""The losses of teacher and student; all averaging is in `masked`."""
