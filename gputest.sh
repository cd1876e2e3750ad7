export PYTHONPATH=src MISTRNN_CACHE=/tmp/mk PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=2
P="python3 -m pytest -p no:cacheprovider -v tests/kernels/test_cuda.py"
for n in mist narx clockwork rnn lstm gru; do timeout 200 $P -k "$n" --tb=short > /tmp/t_$n.log 2>&1 & done
timeout 200 $P -k "not (mist or narx or clockwork or rnn or lstm or gru)" --tb=short > /tmp/t_rest.log 2>&1 &
wait
for f in /tmp/t_*.log; do echo "== $f $(grep -c PASSED $f) passed"; grep -E "^E  |^FAILED| failed|Error" $f | cut -c1-200 | tail -12; done; cat /tmp/t_*.log > $OUT/tests.log
