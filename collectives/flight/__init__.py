"""The flight recorder: what each rank was doing, who waits for whom, and errors that say so."""
