#!/bin/bash
# A run on a GPU that may be taken away at any moment. Its newest weights are packed to be brought along:
#   bash configs/gpu.sh WEIGHTS NAME run_pretraining.py RECIPE.yaml [--flag value ...]
# The run is written to runs/gpu/NAME. After each checkpoint, and at the end, the folder WEIGHTS gets NAME.tar.aa, NAME.tar.ab
# and so on in place of those before: files of at most 15 MB with the model in bfloat16 and the log. To unpack them:
#   cat WEIGHTS/NAME.tar.* | tar -x -C WEIGHTS
# PYTHON names the interpreter, if it is not the first one on the path.
set -u -o pipefail
shopt -s extglob nullglob

weights=$1 name=$2 run=runs/gpu/$2 python=${PYTHON:-python} packed=
shift 2

# The weights of the file, those of floating point numbers in bfloat16, as another file.
halve='
import sys
from safetensors.torch import load_file, save_file
weights = load_file(sys.argv[1])
halves = {name: weight.bfloat16() if weight.is_floating_point() else weight for name, weight in weights.items()}
save_file(halves, sys.argv[2], metadata={"format": "pt"})
'

newest() { # the folder of the model
    local checkpoints=("$run"/checkpoint-*)
    if [ -f "$run/metrics.json" ]; then
        echo "$run"
    elif [ ${#checkpoints[@]} -gt 0 ]; then
        printf '%s\n' "${checkpoints[@]}" | sort -V | tail -n 1
    fi
}

pack() { # does nothing if the newest model is packed; fails if the run removes it meanwhile
    local model folder files
    model=$(newest)
    if [ "$model" = "$packed" ]; then return; fi
    folder=$(mktemp -d)
    mkdir "$folder/$name"
    files=("$model"/!(progress).json "$model"/*.txt "$model"/*.py "$model"/*.md)
    if cp "${files[@]}" "$folder/$name" &&
        "$python" -c "$halve" "$model/model.safetensors" "$folder/$name/model.safetensors"; then
        cp "$run"/{log.jsonl,metrics.json} "$folder/$name" 2> /dev/null
        (cd "$folder/$name" && sha256sum -- !(README.md)) > "$folder/SHA256SUMS"
        mv "$folder/SHA256SUMS" "$folder/$name"
        tar -c -C "$folder" "$name" | split -b 15000000 - "$folder/$name.tar." &&
            rm -f "$weights/$name.tar".* && mv "$folder/$name.tar".* "$weights" && packed=$model
    fi
    rm -r "$folder"
}

mkdir -p "$weights"
"$python" "$@" --output_dir "$run" &
process=$!
trap 'kill "$process"' TERM
while kill -0 "$process" 2> /dev/null; do
    pack
    sleep "${PACK_SECONDS:-5}"
done
wait "$process"
status=$?
pack
exit "$status"
