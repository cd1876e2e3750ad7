export PYTHONPATH=src MISTRNN_CACHE=/tmp/mk PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=2
P="python3 -m pytest -p no:cacheprovider -q -x --maxfail=6 tests/kernels/test_cuda.py"
for n in mist narx clockwork rnn lstm gru; do timeout 400 $P -k "$n" --tb=short > /tmp/t_$n.log 2>&1 & done
timeout 400 $P -k "not (mist or narx or clockwork or rnn or lstm or gru) or refused or old or stream or graph or ready or records" --tb=short > /tmp/t_rest.log 2>&1 &
wait
for f in /tmp/t_*.log; do echo "== $f"; grep -E "^E  |^FAILED|passed|failed|Error" $f | cut -c1-220 | tail -22; cp $f $OUT/; done
