"""Services of the process and the machine: limits, logs, forks, large pages, and the C99 runtime as a library."""
