"""What the process and the machine give: limits, logs, forks, large pages, the C99 runtime as a library."""
