"""Many runs, one result: the paper's tables on any data, with published figures beside ours."""
