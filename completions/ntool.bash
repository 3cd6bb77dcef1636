# bash completion for ntool
# Made by `python -m ntool.completion --write completions`; do not edit.

# Sets kind and choices to what an option (its name) or argument (its number) of a command takes.
# Fails if it takes nothing.
_ntool_takes() {
    choices=''
    case "$1 $2" in
        'inspect-headers --include') kind=text ;;
        'inspect-headers --exclude') kind=text ;;
        'inspect-headers --max-header') kind=text ;;
        'inspect-headers --revision') kind=text ;;
        'inspect-headers --format') kind=words choices='jsonl table csv tsv' ;;
        'inspect-headers --progress') kind=words choices='auto always never plain json' ;;
        'inspect-headers '[0-9]*) kind=source ;;
        'census --by') kind=words choices='family component dtype layer prefix file shape role' ;;
        'census --groups') kind=file ;;
        'census --as-dtype') kind=words choices='BOOL U8 I8 I16 U16 I32 U32 I64 U64 F16 BF16 F32 F64 C64 F8_E4M3 F8_E5M2 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ F6_E2M3 F6_E3M2 F4' ;;
        'census --expect') kind=file ;;
        'census --against') kind=source ;;
        'census --allow-missing') kind=text ;;
        'census --plot') kind=file ;;
        'census --repair-index') kind=file ;;
        'census --max-header') kind=text ;;
        'census --revision') kind=text ;;
        'census --format') kind=words choices='jsonl table csv tsv' ;;
        'census --progress') kind=words choices='auto always never plain json' ;;
        'census 1') kind=source ;;
        'convert-fp8 --output' | 'convert-fp8 -o') kind=folder ;;
        'convert-fp8 --to') kind=words choices='bf16 f16 f32 qdq fp8' ;;
        'convert-fp8 --include') kind=text ;;
        'convert-fp8 --exclude') kind=text ;;
        'convert-fp8 --block') kind=text ;;
        'convert-fp8 --scale') kind=words choices='block per-tensor' ;;
        'convert-fp8 --lowering') kind=words choices='blocked tiles' ;;
        'convert-fp8 --scale-reading') kind=words choices='exact bf16' ;;
        'convert-fp8 --allow-unscaled') kind=text ;;
        'convert-fp8 --shard-size') kind=text ;;
        'convert-fp8 --jobs' | 'convert-fp8 -j') kind=text ;;
        'convert-fp8 --part') kind=text ;;
        'convert-fp8 --merge') kind=folder ;;
        'convert-fp8 --revision') kind=text ;;
        'convert-fp8 --max-header') kind=text ;;
        'convert-fp8 --format') kind=words choices='jsonl table csv tsv' ;;
        'convert-fp8 --progress') kind=words choices='auto always never plain json' ;;
        'convert-fp8 1') kind=source ;;
        'convert-experts --output' | 'convert-experts -o') kind=folder ;;
        'convert-experts --to') kind=words choices='split fused fused-transposed stacked' ;;
        'convert-experts --gate-up-order') kind=words choices='concatenated interleaved' ;;
        'convert-experts --names') kind=words choices='gate-up-down w1-w3-w2' ;;
        'convert-experts --shard-size') kind=text ;;
        'convert-experts --jobs' | 'convert-experts -j') kind=text ;;
        'convert-experts --part') kind=text ;;
        'convert-experts --merge') kind=folder ;;
        'convert-experts --revision') kind=text ;;
        'convert-experts --max-header') kind=text ;;
        'convert-experts --format') kind=words choices='jsonl table csv tsv' ;;
        'convert-experts --progress') kind=words choices='auto always never plain json' ;;
        'convert-experts 1') kind=source ;;
        'export-component --output' | 'export-component -o') kind=file ;;
        'export-component --dtype') kind=words choices='auto f32 f16 bf16' ;;
        'export-component --set') kind=text ;;
        'export-component --ep') kind=words choices='default cpu cuda onnx-standard' ;;
        'export-component --data') kind=words choices='auto copy reflink hardlink inplace' ;;
        'export-component --external-data') kind=text ;;
        'export-component --shard-size') kind=text ;;
        'export-component --max-shard-size') kind=text ;;
        'export-component --scale-reading') kind=words choices='exact bf16' ;;
        'export-component --revision') kind=text ;;
        'export-component --format') kind=words choices='jsonl table csv tsv' ;;
        'export-component --progress') kind=words choices='auto always never plain json' ;;
        'export-component 1') kind=source ;;
        'export-component '[0-9]*) kind=words choices='vision_encoder embedding decoder image_gen_embedding image_gen_denoiser' ;;
        'run-prefill --prompt') kind=text ;;
        'run-prefill --prompt-file') kind=file ;;
        'run-prefill --messages') kind=file ;;
        'run-prefill --query') kind=text ;;
        'run-prefill --tokens') kind=text ;;
        'run-prefill --image') kind=file ;;
        'run-prefill --task') kind=words choices='chat text-to-image image-edit images-only unconditional interleave' ;;
        'run-prefill --system') kind=text ;;
        'run-prefill --min-pixels') kind=text ;;
        'run-prefill --max-pixels') kind=text ;;
        'run-prefill --pad') kind=text ;;
        'run-prefill --decode') kind=text ;;
        'run-prefill --size') kind=text ;;
        'run-prefill --steps') kind=text ;;
        'run-prefill --cfg') kind=text ;;
        'run-prefill --img-cfg') kind=text ;;
        'run-prefill --cfg-norm') kind=words choices='none global channel cfg_zero_star' ;;
        'run-prefill --cfg-interval') kind=text ;;
        'run-prefill --shift') kind=text ;;
        'run-prefill --t-eps') kind=text ;;
        'run-prefill --seed') kind=text ;;
        'run-prefill --rng') kind=words choices='portable torch-cpu' ;;
        'run-prefill --latent') kind=file ;;
        'run-prefill --device') kind=words choices='auto cpu cuda' ;;
        'run-prefill --threads') kind=text ;;
        'run-prefill --output' | 'run-prefill -o') kind=file ;;
        'run-prefill --format') kind=words choices='jsonl table csv tsv' ;;
        'run-prefill --progress') kind=words choices='auto always never plain json' ;;
        'run-prefill 1') kind=package ;;
        'sample-image --output' | 'sample-image -o') kind=file ;;
        'sample-image --prompt') kind=text ;;
        'sample-image --image') kind=file ;;
        'sample-image --prompts') kind=file ;;
        'sample-image --messages') kind=file ;;
        'sample-image --query') kind=text ;;
        'sample-image --system') kind=text ;;
        'sample-image --min-pixels') kind=text ;;
        'sample-image --max-pixels') kind=text ;;
        'sample-image --prefix') kind=file ;;
        'sample-image --prefix-images-only') kind=file ;;
        'sample-image --prefix-unconditional') kind=file ;;
        'sample-image --size') kind=text ;;
        'sample-image --steps') kind=text ;;
        'sample-image --cfg') kind=text ;;
        'sample-image --img-cfg') kind=text ;;
        'sample-image --cfg-norm') kind=words choices='none global channel cfg_zero_star' ;;
        'sample-image --cfg-interval') kind=text ;;
        'sample-image --shift') kind=text ;;
        'sample-image --t-eps') kind=text ;;
        'sample-image --seed') kind=text ;;
        'sample-image --count') kind=text ;;
        'sample-image --rng') kind=words choices='portable torch-cpu' ;;
        'sample-image --latent') kind=file ;;
        'sample-image --save-latent') kind=file ;;
        'sample-image --trace') kind=file ;;
        'sample-image --sheet') kind=file ;;
        'sample-image --preview') kind=file ;;
        'sample-image --preview-every') kind=text ;;
        'sample-image --device') kind=words choices='auto cpu cuda' ;;
        'sample-image --threads') kind=text ;;
        'sample-image --format') kind=words choices='jsonl table csv tsv' ;;
        'sample-image --progress') kind=words choices='auto always never plain json' ;;
        'sample-image 1') kind=package ;;
        'verify-package --check') kind=words choices='layout.files layout.schema graph.parse graph.checker graph.types graph.standard graph.names graph.dead data.path data.bounds data.orphans data.hash weights.complete weights.values weights.sane dtype.policy flow.ports flow.tokens run.load run.support run.dynamic run.finite run.placement golden.values' ;;
        'verify-package --skip') kind=words choices='layout.files layout.schema graph.parse graph.checker graph.types graph.standard graph.names graph.dead data.path data.bounds data.orphans data.hash weights.complete weights.values weights.sane dtype.policy flow.ports flow.tokens run.load run.support run.dynamic run.finite run.placement golden.values' ;;
        'verify-package --against') kind=source ;;
        'verify-package --golden') kind=file ;;
        'verify-package --manifest') kind=file ;;
        'verify-package --report') kind=file ;;
        'verify-package --picture') kind=file ;;
        'verify-package --compact') kind=text ;;
        'verify-package --device') kind=words choices='auto cpu cuda' ;;
        'verify-package --timeout') kind=text ;;
        'verify-package --memory') kind=text ;;
        'verify-package --format') kind=words choices='jsonl table csv tsv junit' ;;
        'verify-package --progress') kind=words choices='auto always never plain json' ;;
        'verify-package 1') kind=folder ;;
        'doctor --format') kind=words choices='jsonl table csv tsv' ;;
        'doctor --progress') kind=words choices='auto always never plain json' ;;
        'patchgen contract --old') kind=folder ;;
        'patchgen contract --new') kind=folder ;;
        'patchgen contract --config-name' | 'patchgen contract -c') kind=text ;;
        'patchgen contract --allow') kind=text ;;
        'patchgen contract --format') kind=words choices='jsonl table csv tsv' ;;
        'patchgen contract --progress') kind=words choices='auto always never plain json' ;;
        'patchgen contract 1') kind=file ;;
        'patchgen check --set') kind=text ;;
        'patchgen check --config-name' | 'patchgen check -c') kind=text ;;
        'patchgen check --allow') kind=text ;;
        'patchgen check --format') kind=words choices='jsonl table csv tsv' ;;
        'patchgen check --progress') kind=words choices='auto always never plain json' ;;
        'patchgen check '[0-9]*) kind=file ;;
        'patchgen list --config-name' | 'patchgen list -c') kind=text ;;
        'patchgen list --format') kind=words choices='jsonl table csv tsv' ;;
        'patchgen list --progress') kind=words choices='auto always never plain json' ;;
        'patchgen list '[0-9]*) kind=file ;;
        'patchgen generate --output' | 'patchgen generate -o') kind=folder ;;
        'patchgen generate --set') kind=text ;;
        'patchgen generate --config-name' | 'patchgen generate -c') kind=text ;;
        'patchgen generate --allow') kind=text ;;
        'patchgen generate --format') kind=words choices='jsonl table csv tsv' ;;
        'patchgen generate --progress') kind=words choices='auto always never plain json' ;;
        'patchgen generate '[0-9]*) kind=file ;;
        'completion --format') kind=words choices='jsonl table csv tsv' ;;
        'completion --progress') kind=words choices='auto always never plain json' ;;
        'completion 1') kind=words choices='bash zsh fish' ;;
        *) return 1 ;;
    esac
}

_ntool_commands='inspect-headers census convert-fp8 convert-experts export-component run-prefill sample-image verify-package doctor patchgen completion'
_ntool_demos='demo:shapes'

# Sets choices to the commands of a group; fails for other commands.
_ntool_group() {
    case $1 in
        patchgen) choices='contract check list generate' ;;
        *) return 1 ;;
    esac
}

_ntool_options() {
    case $1 in
        '') choices='--version --verbose -v --help -h' ;;
        inspect-headers) choices='--include --exclude --full --max-header --revision --no-index --format --progress --quiet -q --verbose -v --help -h' ;;
        census) choices='--by --groups --as-dtype --expect --against --allow-missing --plot --repair-index --force --max-header --revision --format --progress --quiet -q --verbose -v --help -h' ;;
        convert-fp8) choices='--output -o --to --include --exclude --block --scale --lowering --scale-reading --allow-unscaled --shard-size --jobs -j --part --merge --resume --dry-run --verify --force --revision --max-header --format --progress --quiet -q --verbose -v --help -h' ;;
        convert-experts) choices='--output -o --to --gate-up-order --names --shard-size --jobs -j --part --merge --resume --dry-run --verify --force --revision --max-header --format --progress --quiet -q --verbose -v --help -h' ;;
        export-component) choices='--output -o --dtype --set --ep --force-f16 --data --external-data --shard-size --max-shard-size --text-only --dequantize --scale-reading --revision --force --dry-run --format --progress --quiet -q --verbose -v --help -h' ;;
        run-prefill) choices='--prompt --prompt-file --messages --query --tokens --image --task --system --think --min-pixels --max-pixels --pad --decode --raw --all-logits --size --steps --cfg --img-cfg --cfg-norm --cfg-interval --shift --t-eps --seed --rng --latent --device --threads --low-memory --output -o --format --progress --quiet -q --verbose -v --help -h' ;;
        sample-image) choices='--output -o --prompt --image --prompts --messages --query --system --think --min-pixels --max-pixels --prefix --prefix-images-only --prefix-unconditional --size --fit --steps --cfg --img-cfg --cfg-norm --cfg-interval --shift --t-eps --seed --count --rng --latent --save-latent --trace --sheet --preview --preview-every --no-metadata --device --threads --low-memory --plan --format --progress --quiet -q --verbose -v --help -h' ;;
        verify-package) choices='--check --skip --standard-only --against --golden --no-run --write-manifest --manifest --report --picture --compact --force --device --timeout --memory --print-schema --format --progress --quiet -q --verbose -v --help -h' ;;
        doctor) choices='--format --progress --quiet -q --verbose -v --help -h' ;;
        patchgen) choices='--help -h' ;;
        'patchgen contract') choices='--old --new --config-name -c --static --allow --json --format --progress --quiet -q --verbose -v --help -h' ;;
        'patchgen check') choices='--fix --diff --ignore-version --set --config-name -c --static --allow --allow-duplicate --allow-findings --json --format --progress --quiet -q --verbose -v --help -h' ;;
        'patchgen list') choices='--config-name -c --static --json --format --progress --quiet -q --verbose -v --help -h' ;;
        'patchgen generate') choices='--output -o --stdout --diff --fingerprint --set --config-name -c --static --allow --allow-duplicate --allow-findings --dry-run --json --format --progress --quiet -q --verbose -v --help -h' ;;
        completion) choices='--format --progress --quiet -q --verbose -v --help -h' ;;
        *) choices='' ;;
    esac
}

_ntool() {
    local line=${COMP_LINE:0:COMP_POINT} space breaks='' i word files=''
    local command='' position=1 expects='' ended='' kind='' choices='' current value prefix=''
    local IFS=$' \t\n'
    local -a words=()
    COMPREPLY=()

    # bash cuts words at : and = too; what has no space between is one word again here
    for ((i = 0; i <= COMP_CWORD; i++)); do
        space=${line%%[![:space:]]*}
        line=${line#"$space"}
        word=$line
        if ((i < COMP_CWORD)); then
            word=${COMP_WORDS[i]}
        fi
        line=${line#"$word"}
        if [[ $i == 0 || -n $space ]]; then
            words+=("$word")
        else
            words[${#words[@]} - 1]+=$word
        fi
    done
    current=${words[${#words[@]} - 1]}

    for ((i = 1; i < ${#words[@]} - 1; i++)); do
        word=${words[i]}
        if [[ -n $expects ]]; then
            expects=''
        elif [[ -z $ended && $word == -- ]]; then
            ended=1
        elif [[ -z $ended && $word == -?* ]]; then
            if [[ $word != *=* ]] && _ntool_takes "$command" "$word"; then
                expects=$word
            fi
        elif [[ -z $command ]]; then
            command=$word
        elif _ntool_group "$command"; then
            command+=" $word"
        else
            ((position++))
        fi
    done

    kind=words
    value=$current
    if [[ -n $expects ]]; then
        _ntool_takes "$command" "$expects"
    elif [[ -z $ended && $current == --*=* ]]; then
        prefix=${current%%=*}=
        value=${current#*=}
        _ntool_takes "$command" "${current%%=*}" || return 0
    elif [[ -z $ended && $current == -* ]]; then
        _ntool_options "$command"
    elif [[ -z $command ]]; then
        choices=$_ntool_commands
    elif ! _ntool_group "$command"; then
        _ntool_takes "$command" "$position" || return 0
    fi

    if [[ $kind == source || $kind == package ]]; then
        choices=$_ntool_demos
    fi
    for word in $choices; do
        if [[ $word == "$value"* ]]; then
            COMPREPLY+=("$prefix$word")
        fi
    done
    case $kind in
        file | source) files=-f ;;
        folder | package) files=-d ;;
    esac
    if [[ -n $files ]]; then
        while IFS= read -r word; do
            COMPREPLY+=("$prefix$word")
            compopt -o filenames 2>/dev/null
        done < <(compgen "$files" -- "$value")
        if ((${#COMPREPLY[@]} == 0)); then
            compopt -o default 2>/dev/null # readline knows about quotes and ~
        fi
    fi

    # bash replaces only what follows the last : or =
    if [[ $COMP_WORDBREAKS == *:* ]]; then
        breaks+=:
    fi
    if [[ $COMP_WORDBREAKS == *=* ]]; then
        breaks+==
    fi
    if [[ -n $breaks && $current != *[\'\"]* ]]; then
        prefix=${current%"${current##*[$breaks]}"}
        for i in "${!COMPREPLY[@]}"; do
            COMPREPLY[i]=${COMPREPLY[i]#"$prefix"}
        done
    fi
}

complete -F _ntool ntool
