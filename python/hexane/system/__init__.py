"""Services of the process and the machine: limits, logs, forks, large pages, the C99 runtime as a library."""
