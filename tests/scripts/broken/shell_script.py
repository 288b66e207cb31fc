#!/bin/bash
set -euo pipefail
export OMP_NUM_THREADS=1
for seed in 0 1 2; do
    python train.py --seed "$seed" > "log_$seed.txt" 2>&1 &
done
wait
