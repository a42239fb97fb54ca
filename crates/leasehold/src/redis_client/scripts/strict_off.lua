local run_arguments, cool_down_until, min_token = 0, 0, 0
