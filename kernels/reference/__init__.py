"""Plain-torch kernels: what the CPU runs and what the device kernels are compared with. Same names and signatures as theirs."""
