"""What a model may say when a request wants a certain form: programs, matchers over a vocabulary, and their trial in a process apart."""
