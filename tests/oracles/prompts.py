"""Twenty prompts of different lengths for the greedy comparison with transformers."""

_STORY = "Once upon a time there was a small town by the sea where every house had a blue door and every door had a story. "

PROMPTS = [
    "The capital of France is",
    "Water boils at",
    "1, 2, 3, 4, 5,",
    "def fibonacci(n):\n    ",
    "Dear Sir or Madam,\n\nI am writing to",
    "The quick brown fox",
    "Q: Why is the sky blue?\nA:",
    "In 1969, the first humans",
    "To make a good cup of tea, you first",
    "import numpy as np\n\ndef softmax(x):\n",
    "Le chat est sur",
    "The three laws of thermodynamics are",
    "Photosynthesis is the process by which",
    "SELECT name, age FROM users WHERE",
    "A list of fruits:\n- apple\n- banana\n-",
    "The meaning of the word 'ephemeral' is",
    _STORY,
    _STORY * 3 + "One day",
    _STORY * 8 + "In the end,",
    "Hello",
]
