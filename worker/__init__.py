"""The process that holds weights and KV memory of one device and runs step plans. It decides nothing: the scheduler does."""
