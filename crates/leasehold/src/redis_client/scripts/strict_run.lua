local strict, RUN = true, sub(ARGV[#ARGV - 1], 1, RUN_DIGITS)
