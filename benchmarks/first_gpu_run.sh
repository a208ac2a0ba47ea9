#!/bin/sh
# The first ten minutes on a GPU, cheapest first: what the CUDA kernels need to
# be run for that no test on a host can show (docs/cuda.rst).
#
#     sh benchmarks/first_gpu_run.sh [FOLDER]
#
# Needs the library built beforehand against the torch that is there
# (FORCE_CUDA=1 python setup.py build_ext --inplace); builds it if it does not
# load. All output goes to FOLDER (gpu_run), a file a step, and `summary` has
# how each ended. A step that fails or takes too long does not stop the rest,
# except where nothing could come of it. PYTHON names another Python.
set -u
cd "$(dirname "$0")/.."
folder=${1:-gpu_run}
python=${PYTHON:-python}
mkdir -p "$folder"
: > "$folder/summary"
PYTHONPATH=$(pwd)
export PYTHONPATH

# step NAME SECONDS COMMAND...
step() {
  name=$1
  limit=$2
  shift 2
  begin=$(date +%s)
  timeout -k 10 "$limit" "$@" > "$folder/$name.log" 2>&1
  code=$?
  if [ "$code" -eq 0 ]; then how=ok
  elif [ "$code" -eq 124 ] || [ "$code" -eq 137 ]; then how="more than $limit s"
  else how="failed ($code)"; fi
  echo "$name: $how, $(($(date +%s) - begin)) s" | tee -a "$folder/summary"
  return "$code"
}

# skip NAME WHY
skip() {
  echo "$1: skipped, $2" | tee -a "$folder/summary"
}

load='
import torch
from pyg_trust import ops
print(torch.__version__, torch.version.cuda, torch.cuda.get_device_name())
assert ops.has_kernel("cuda"), "built for the CPU alone"
torch.zeros(1, device="cuda").add_(1).item()
'
push='
import torch
from pyg_trust import agp as F
from pyg_trust.graph import CSRGraph
n, m = SIZE
edges = torch.randint(0, n, (2, m), generator=torch.Generator().manual_seed(0))
edges = torch.cat([edges, edges.flip(0)], 1)
graph = CSRGraph.from_edge_index(edges, n, duplicates="merge").to("cuda")
x = torch.rand(n, 64, device="cuda")
for _ in range(TIMES):
    F.propagate(graph, x, F.appnp(0.1, K=4), eps=1e-3, seed=1)
    F.propagate(graph, x, F.appnp(0.1, K=4))
torch.cuda.synchronize()
'
small='
import torch
from pyg_trust import agp as F
from pyg_trust.graph import CSRGraph
from pyg_trust.sampler.walks import disjoint_walks
edges = torch.randint(0, 500, (2, 3000))
graph = CSRGraph.from_edge_index(
    torch.cat([edges, edges.flip(0)], 1), 500, duplicates="merge"
).to("cuda")
F.propagate(graph, torch.rand(500, 20, device="cuda"), F.ppr(0.2), eps=1e-3,
            seed=0)
disjoint_walks(graph, 2, 1, seed=0)
torch.cuda.synchronize()
'

# 1. What there is, and whether the library loads.
step 1_machine 20 nvidia-smi || { skip rest 'no GPU answers'; exit 1; }
if ! step 1_load 60 "$python" -c "$load"; then
  step 1_build 900 env FORCE_CUDA=1 "$python" setup.py -q build_ext --inplace
  step 1_load_again 60 "$python" -c "$load" || {
    skip rest 'the library does not load'
    exit 1
  }
fi
step 1_versions 30 "$python" -m pip list

# 2. Stream and launches.
step 2_first 60 "$python" -m pytest -x -q tests/test_cuda.py \
  -k 'empty or (test_propagate and random)'

# 3. Correctness.
step 3_all 150 "$python" -m pytest -q tests/test_cuda.py

# 4. Memory and races of one push and some walks.
if command -v compute-sanitizer > /dev/null; then
  for tool in memcheck racecheck initcheck; do
    step "4_$tool" 60 compute-sanitizer --tool "$tool" --error-exitcode 1 \
      "$python" -c "$small"
  done
else
  skip 4_sanitizer 'no compute-sanitizer'
fi

# 5. Pushes against exact levels and the floor; where both cost the same.
step 5_push 120 "$python" benchmarks/push.py --device cuda --only wide \
  --sizes 200k --graphs pl
step 5_calibrate 60 "$python" benchmarks/calibrate.py --device cuda

# 6. A profile of pushes at a million nodes.
large=$(printf '%s' "$push" | sed 's/SIZE/1_000_000, 5_000_000/; s/TIMES/3/')
if command -v nsys > /dev/null; then
  step 6_profile 60 nsys profile --stats=true -f true \
    -o "$folder/6_profile" "$python" -c "$large"
else
  step 6_profile 60 "$python" -c "
import torch
from torch.profiler import ProfilerActivity, profile
with profile(activities=[ProfilerActivity.CUDA]) as run:
    exec('''$large''')
print(run.key_averages().table(sort_by='cuda_time_total', row_limit=30))
"
fi

# 7. Walks.
step 7_walk 60 "$python" benchmarks/walk.py --device cuda --growth 300000 \
  --repeats 1

! grep -q 'failed\|more than' "$folder/summary"
