"""What torch's profiler recorded of a window of steps: read, brought onto the run's clock, given to phases."""
