# a tiny run for debugging
batch_size = 16
n_hidden = 32
max_iters = 30
learning_rate = 1e-2
