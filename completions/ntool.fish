# fish completion for ntool
# Made by `python -m ntool.completion --write completions`; do not edit.

# Succeeds if the line has this command, and is at its argument number FIRST..LAST, if given.
function __ntool_at --argument-names wanted first last
    set -l words (commandline -opc)
    set -e words[1]
    set -l command ''
    set -l position 1
    set -l expects no
    for word in $words
        if test $expects = yes
            set expects no
            continue
        end
        switch $word
            case '--*=*'
            case '-*'
                if contains -- "$command $word" $__ntool_valued
                    set expects yes
                end
            case '*'
                if test -z "$command"
                    set command $word
                else if contains -- "$command" $__ntool_groups
                    set command "$command $word"
                else
                    set position (math $position + 1)
                end
        end
    end
    test "$command" = "$wanted"; or return 1
    test -z "$first"; or test $position -ge $first -a $position -le $last
end

set -g __ntool_valued \
    'inspect-headers --include' 'inspect-headers --exclude' 'inspect-headers --max-header' 'inspect-headers --revision' 'inspect-headers --format' 'inspect-headers --progress' \
    'census --by' 'census --groups' 'census --as-dtype' 'census --expect' 'census --against' 'census --allow-missing' 'census --plot' 'census --repair-index' 'census --max-header' 'census --revision' 'census --format' 'census --progress' \
    'convert-fp8 --output' 'convert-fp8 -o' 'convert-fp8 --to' 'convert-fp8 --include' 'convert-fp8 --exclude' 'convert-fp8 --block' 'convert-fp8 --scale' 'convert-fp8 --lowering' 'convert-fp8 --scale-reading' 'convert-fp8 --allow-unscaled' 'convert-fp8 --shard-size' 'convert-fp8 --jobs' 'convert-fp8 -j' 'convert-fp8 --part' 'convert-fp8 --merge' 'convert-fp8 --revision' 'convert-fp8 --max-header' 'convert-fp8 --format' 'convert-fp8 --progress' \
    'convert-experts --output' 'convert-experts -o' 'convert-experts --to' 'convert-experts --gate-up-order' 'convert-experts --names' 'convert-experts --shard-size' 'convert-experts --jobs' 'convert-experts -j' 'convert-experts --part' 'convert-experts --merge' 'convert-experts --revision' 'convert-experts --max-header' 'convert-experts --format' 'convert-experts --progress' \
    'export-component --output' 'export-component -o' 'export-component --dtype' 'export-component --set' 'export-component --ep' 'export-component --data' 'export-component --external-data' 'export-component --shard-size' 'export-component --max-shard-size' 'export-component --scale-reading' 'export-component --revision' 'export-component --format' 'export-component --progress' \
    'run-prefill --prompt' 'run-prefill --prompt-file' 'run-prefill --messages' 'run-prefill --query' 'run-prefill --tokens' 'run-prefill --image' 'run-prefill --task' 'run-prefill --system' 'run-prefill --min-pixels' 'run-prefill --max-pixels' 'run-prefill --pad' 'run-prefill --decode' 'run-prefill --size' 'run-prefill --steps' 'run-prefill --cfg' 'run-prefill --img-cfg' 'run-prefill --cfg-norm' 'run-prefill --cfg-interval' 'run-prefill --shift' 'run-prefill --t-eps' 'run-prefill --seed' 'run-prefill --rng' 'run-prefill --latent' 'run-prefill --device' 'run-prefill --threads' 'run-prefill --output' 'run-prefill -o' 'run-prefill --format' 'run-prefill --progress' \
    'sample-image --output' 'sample-image -o' 'sample-image --prompt' 'sample-image --image' 'sample-image --prompts' 'sample-image --messages' 'sample-image --query' 'sample-image --system' 'sample-image --min-pixels' 'sample-image --max-pixels' 'sample-image --prefix' 'sample-image --prefix-images-only' 'sample-image --prefix-unconditional' 'sample-image --size' 'sample-image --steps' 'sample-image --cfg' 'sample-image --img-cfg' 'sample-image --cfg-norm' 'sample-image --cfg-interval' 'sample-image --shift' 'sample-image --t-eps' 'sample-image --seed' 'sample-image --count' 'sample-image --rng' 'sample-image --latent' 'sample-image --save-latent' 'sample-image --trace' 'sample-image --sheet' 'sample-image --preview' 'sample-image --preview-every' 'sample-image --device' 'sample-image --threads' 'sample-image --format' 'sample-image --progress' \
    'verify-package --check' 'verify-package --skip' 'verify-package --against' 'verify-package --golden' 'verify-package --manifest' 'verify-package --report' 'verify-package --picture' 'verify-package --compact' 'verify-package --device' 'verify-package --timeout' 'verify-package --memory' 'verify-package --format' 'verify-package --progress' \
    'doctor --format' 'doctor --progress' \
     \
    'patchgen contract --old' 'patchgen contract --new' 'patchgen contract --config-name' 'patchgen contract -c' 'patchgen contract --allow' 'patchgen contract --format' 'patchgen contract --progress' \
    'patchgen check --set' 'patchgen check --config-name' 'patchgen check -c' 'patchgen check --allow' 'patchgen check --format' 'patchgen check --progress' \
    'patchgen list --config-name' 'patchgen list -c' 'patchgen list --format' 'patchgen list --progress' \
    'patchgen generate --output' 'patchgen generate -o' 'patchgen generate --set' 'patchgen generate --config-name' 'patchgen generate -c' 'patchgen generate --allow' 'patchgen generate --format' 'patchgen generate --progress' \
    'completion --format' 'completion --progress'
set -g __ntool_groups 'patchgen'

complete -c ntool -f
complete -c ntool -n '__ntool_at \'\'' -l version -d 'Print the version.'
complete -c ntool -n '__ntool_at \'\'' -l verbose -s v -d 'With --version: those of all packages.'
complete -c ntool -n '__ntool_at \'\'' -l help -s h -d 'Show this message and exit.'
complete -c ntool -n '__ntool_at \'\'' -a inspect-headers -d 'List every tensor of a checkpoint from its headers, without reading the weights'
complete -c ntool -n '__ntool_at \'\'' -a census -d 'Count the tensors of a checkpoint by group and dtype, and say what is wrong with it'
complete -c ntool -n '__ntool_at \'\'' -a convert-fp8 -d 'Convert FP8 weights with their scales to dense ones or to an ONNX package that keeps their bytes, or dense weights to FP8'
complete -c ntool -n '__ntool_at \'\'' -a convert-experts -d 'Store the experts of a checkpoint in another layout; every byte is kept, none is computed'
complete -c ntool -n '__ntool_at \'\'' -a export-component -d 'Export a checkpoint\'s components to ONNX graphs in a package folder, without PyTorch'
complete -c ntool -n '__ntool_at \'\'' -a run-prefill -d 'Run a prompt through the understanding branch'
complete -c ntool -n '__ntool_at \'\'' -a sample-image -d 'Draw a picture from a prompt, edit pictures, or go on from prefix files'
complete -c ntool -n '__ntool_at \'\'' -a verify-package -d 'Check a package'
complete -c ntool -n '__ntool_at \'\'' -a doctor -d 'Show what this machine offers'
complete -c ntool -n '__ntool_at \'\'' -a patchgen -d 'List, generate and check patched modelling files, and see what they rest on'
complete -c ntool -n '__ntool_at \'\'' -a completion -d 'Print the completion script of a shell, to be sourced or saved where the shell looks'

# inspect-headers
complete -c ntool -n '__ntool_at inspect-headers' -l include -x -d 'Only names that match. May be repeated.'
complete -c ntool -n '__ntool_at inspect-headers' -l exclude -x -d 'Not the names that match. May be repeated.'
complete -c ntool -n '__ntool_at inspect-headers' -l full -d 'Long lists of metadata and config in full.'
complete -c ntool -n '__ntool_at inspect-headers' -l max-header -x -d 'Largest header to read.'
complete -c ntool -n '__ntool_at inspect-headers' -l revision -x -d 'Branch, tag or commit on the Hub; as SOURCE@REV.'
complete -c ntool -n '__ntool_at inspect-headers' -l no-index -d 'List the files of the folder, whatever its index says.'
complete -c ntool -n '__ntool_at inspect-headers' -l format -x -a 'jsonl table csv tsv' -d 'Form of the records. Default: table on a terminal, else jsonl.'
complete -c ntool -n '__ntool_at inspect-headers' -l progress -x -a 'auto always never plain json' -d 'Progress on stderr.'
complete -c ntool -n '__ntool_at inspect-headers' -l quiet -s q -d 'No notes on stderr.'
complete -c ntool -n '__ntool_at inspect-headers' -l verbose -s v -d 'Details and tracebacks on stderr.'
complete -c ntool -n '__ntool_at inspect-headers' -l help -s h -d 'Show this message and exit.'
complete -c ntool -n '__ntool_at inspect-headers 1 9999' -r -F -a 'demo:shapes'

# census
complete -c ntool -n '__ntool_at census' -l by -x -a 'family component dtype layer prefix file shape role' -d 'family, component, dtype, layer, prefix[:DEPTH], file, shape, role. Repeatable.'
complete -c ntool -n '__ntool_at census' -l groups -r -F -d 'JSON list of {name, pattern}: groups by regular expression, first wins.'
complete -c ntool -n '__ntool_at census' -l as-dtype -x -a 'BOOL U8 I8 I16 U16 I32 U32 I64 U64 F16 BF16 F32 F64 C64 F8_E4M3 F8_E5M2 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ F6_E2M3 F6_E3M2 F4' -d 'Estimate the bytes as this dtype. Repeatable.'
complete -c ntool -n '__ntool_at census' -l expect -r -F -d 'Saved summary, or some of its fields: exit 1 if it differs.'
complete -c ntool -n '__ntool_at census' -l against -r -F -a 'demo:shapes' -d 'Compare with another checkpoint: exit 1 if it differs.'
complete -c ntool -n '__ntool_at census' -l allow-missing -x -d 'Tensors that may be absent. Repeatable.'
complete -c ntool -n '__ntool_at census' -l plot -r -F -d 'Draw the bytes of the first grouping.'
complete -c ntool -n '__ntool_at census' -l repair-index -r -F -d 'Write an index of all tensors that the files hold, orphans included.'
complete -c ntool -n '__ntool_at census' -l force -d 'Replace an existing output.'
complete -c ntool -n '__ntool_at census' -l max-header -x -d 'Largest header to read.'
complete -c ntool -n '__ntool_at census' -l revision -x -d 'Branch, tag or commit on the Hub; as SOURCE@REV.'
complete -c ntool -n '__ntool_at census' -l format -x -a 'jsonl table csv tsv' -d 'Form of the records. Default: table on a terminal, else jsonl.'
complete -c ntool -n '__ntool_at census' -l progress -x -a 'auto always never plain json' -d 'Progress on stderr.'
complete -c ntool -n '__ntool_at census' -l quiet -s q -d 'No notes on stderr.'
complete -c ntool -n '__ntool_at census' -l verbose -s v -d 'Details and tracebacks on stderr.'
complete -c ntool -n '__ntool_at census' -l help -s h -d 'Show this message and exit.'
complete -c ntool -n '__ntool_at census 1 1' -r -F -a 'demo:shapes'

# convert-fp8
complete -c ntool -n '__ntool_at convert-fp8' -l output -s o -x -a '(__fish_complete_directories)' -d 'Folder to make.'
complete -c ntool -n '__ntool_at convert-fp8' -l to -x -a 'bf16 f16 f32 qdq fp8' -d 'What the weights become.'
complete -c ntool -n '__ntool_at convert-fp8' -l include -x -d 'Only names that match. May be repeated.'
complete -c ntool -n '__ntool_at convert-fp8' -l exclude -x -d 'Not the names that match. May be repeated.'
complete -c ntool -n '__ntool_at convert-fp8' -l block -x -d 'fp8: rows and columns of a block; default 128,128.'
complete -c ntool -n '__ntool_at convert-fp8' -l scale -x -a 'block per-tensor' -d 'fp8: what shares a scale; default block.'
complete -c ntool -n '__ntool_at convert-fp8' -l lowering -x -a 'blocked tiles' -d 'qdq: how blocks become DequantizeLinear; default blocked.'
complete -c ntool -n '__ntool_at convert-fp8' -l scale-reading -x -a 'exact bf16' -d 'qdq: scales widened to float32 (default), or BF16 as they are.'
complete -c ntool -n '__ntool_at convert-fp8' -l allow-unscaled -x -d 'FP8 tensors that need no scale.'
complete -c ntool -n '__ntool_at convert-fp8' -l shard-size -x -d 'Largest shard, as 5GB or 512MiB; a larger tensor has its own.'
complete -c ntool -n '__ntool_at convert-fp8' -l jobs -s j -x -d 'Shards that are made at a time.'
complete -c ntool -n '__ntool_at convert-fp8' -l part -x -d 'Make every N-th shard from the I-th on; --merge finishes.'
complete -c ntool -n '__ntool_at convert-fp8' -l merge -x -a '(__fish_complete_directories)' -d 'Finish what was made in parts: index, report and name. No SOURCE then.'
complete -c ntool -n '__ntool_at convert-fp8' -l resume -d 'Go on with what an interrupted run has finished.'
complete -c ntool -n '__ntool_at convert-fp8' -l dry-run -d 'Check and plan; write nothing.'
complete -c ntool -n '__ntool_at convert-fp8' -l verify -d 'Read the output again and compare every block with the source.'
complete -c ntool -n '__ntool_at convert-fp8' -l force -d 'Replace an existing output.'
complete -c ntool -n '__ntool_at convert-fp8' -l revision -x -d 'Branch, tag or commit on the Hub; as SOURCE@REV.'
complete -c ntool -n '__ntool_at convert-fp8' -l max-header -x -d 'Largest header to read.'
complete -c ntool -n '__ntool_at convert-fp8' -l format -x -a 'jsonl table csv tsv' -d 'Form of the records. Default: table on a terminal, else jsonl.'
complete -c ntool -n '__ntool_at convert-fp8' -l progress -x -a 'auto always never plain json' -d 'Progress on stderr.'
complete -c ntool -n '__ntool_at convert-fp8' -l quiet -s q -d 'No notes on stderr.'
complete -c ntool -n '__ntool_at convert-fp8' -l verbose -s v -d 'Details and tracebacks on stderr.'
complete -c ntool -n '__ntool_at convert-fp8' -l help -s h -d 'Show this message and exit.'
complete -c ntool -n '__ntool_at convert-fp8 1 1' -r -F -a 'demo:shapes'

# convert-experts
complete -c ntool -n '__ntool_at convert-experts' -l output -s o -x -a '(__fish_complete_directories)' -d 'Folder to make.'
complete -c ntool -n '__ntool_at convert-experts' -l to -x -a 'split fused fused-transposed stacked' -d 'Layout of the experts.'
complete -c ntool -n '__ntool_at convert-experts' -l gate-up-order -x -a 'concatenated interleaved' -d 'Order of gate and up in the fused tensors of SOURCE. Default: as names tell.'
complete -c ntool -n '__ntool_at convert-experts' -l names -x -a 'gate-up-down w1-w3-w2' -d 'split: names of the matrices; default gate-up-down.'
complete -c ntool -n '__ntool_at convert-experts' -l shard-size -x -d 'Largest shard, as 5GB or 512MiB; a larger tensor has its own.'
complete -c ntool -n '__ntool_at convert-experts' -l jobs -s j -x -d 'Shards that are made at a time.'
complete -c ntool -n '__ntool_at convert-experts' -l part -x -d 'Make every N-th shard from the I-th on; --merge finishes.'
complete -c ntool -n '__ntool_at convert-experts' -l merge -x -a '(__fish_complete_directories)' -d 'Finish what was made in parts: index, report and name. No SOURCE then.'
complete -c ntool -n '__ntool_at convert-experts' -l resume -d 'Go on with what an interrupted run has finished.'
complete -c ntool -n '__ntool_at convert-experts' -l dry-run -d 'Check and plan; write nothing.'
complete -c ntool -n '__ntool_at convert-experts' -l verify -d 'Read the output again and compare every block with the source.'
complete -c ntool -n '__ntool_at convert-experts' -l force -d 'Replace an existing output.'
complete -c ntool -n '__ntool_at convert-experts' -l revision -x -d 'Branch, tag or commit on the Hub; as SOURCE@REV.'
complete -c ntool -n '__ntool_at convert-experts' -l max-header -x -d 'Largest header to read.'
complete -c ntool -n '__ntool_at convert-experts' -l format -x -a 'jsonl table csv tsv' -d 'Form of the records. Default: table on a terminal, else jsonl.'
complete -c ntool -n '__ntool_at convert-experts' -l progress -x -a 'auto always never plain json' -d 'Progress on stderr.'
complete -c ntool -n '__ntool_at convert-experts' -l quiet -s q -d 'No notes on stderr.'
complete -c ntool -n '__ntool_at convert-experts' -l verbose -s v -d 'Details and tracebacks on stderr.'
complete -c ntool -n '__ntool_at convert-experts' -l help -s h -d 'Show this message and exit.'
complete -c ntool -n '__ntool_at convert-experts 1 1' -r -F -a 'demo:shapes'

# export-component
complete -c ntool -n '__ntool_at export-component' -l output -s o -r -F -d 'Where to write.'
complete -c ntool -n '__ntool_at export-component' -l dtype -x -a 'auto f32 f16 bf16' -d 'auto, f32, f16 or bf16.'
complete -c ntool -n '__ntool_at export-component' -l set -x -d 'Another dtype for one component. Repeatable.'
complete -c ntool -n '__ntool_at export-component' -l ep -x -a 'default cpu cuda onnx-standard' -d 'Meant for: default, cpu, cuda or onnx-standard.'
complete -c ntool -n '__ntool_at export-component' -l force-f16 -d 'Allow f16 for generation, which ends as NaN. To try.'
complete -c ntool -n '__ntool_at export-component' -l data -x -a 'auto copy reflink hardlink inplace' -d 'How weights get there: auto, copy, reflink, hardlink or inplace.'
complete -c ntool -n '__ntool_at export-component' -l external-data -x -d 'Of the data files: there is safetensors.'
complete -c ntool -n '__ntool_at export-component' -l shard-size -x -d 'Largest data file, for example 5GB. Default: by family.'
complete -c ntool -n '__ntool_at export-component' -l max-shard-size -x -d 'Another name of --shard-size.'
complete -c ntool -n '__ntool_at export-component' -l text-only -d 'Of a model of text and pictures the text model alone.'
complete -c ntool -n '__ntool_at export-component' -l dequantize -d 'FP8 weights as dense ones, codes times scales.'
complete -c ntool -n '__ntool_at export-component' -l scale-reading -x -a 'exact bf16' -d 'Scales of FP8 weights that stay: exact or bf16.'
complete -c ntool -n '__ntool_at export-component' -l revision -x -d 'Branch, tag or commit on the Hub; as SOURCE@REV.'
complete -c ntool -n '__ntool_at export-component' -l force -d 'Replace an existing output.'
complete -c ntool -n '__ntool_at export-component' -l dry-run -d 'Check and plan; write nothing.'
complete -c ntool -n '__ntool_at export-component' -l format -x -a 'jsonl table csv tsv' -d 'Form of the records. Default: table on a terminal, else jsonl.'
complete -c ntool -n '__ntool_at export-component' -l progress -x -a 'auto always never plain json' -d 'Progress on stderr.'
complete -c ntool -n '__ntool_at export-component' -l quiet -s q -d 'No notes on stderr.'
complete -c ntool -n '__ntool_at export-component' -l verbose -s v -d 'Details and tracebacks on stderr.'
complete -c ntool -n '__ntool_at export-component' -l help -s h -d 'Show this message and exit.'
complete -c ntool -n '__ntool_at export-component 1 1' -r -F -a 'demo:shapes'
complete -c ntool -n '__ntool_at export-component 2 9999' -a 'vision_encoder embedding decoder image_gen_embedding image_gen_denoiser'

# run-prefill
complete -c ntool -n '__ntool_at run-prefill' -l prompt -x -d 'Text, put into the task\'s template. Several make a batch.'
complete -c ntool -n '__ntool_at run-prefill' -l prompt-file -r -F -d 'File with the text; - for standard input.'
complete -c ntool -n '__ntool_at run-prefill' -l messages -r -F -d 'Conversation: JSON list of role, text, images; - for standard input.'
complete -c ntool -n '__ntool_at run-prefill' -l query -x -d 'Finished text with special tokens, taken as it is.'
complete -c ntool -n '__ntool_at run-prefill' -l tokens -x -d 'Token ids: 1,2,3 or @FILE; rows of a batch: 1,2;3,4.'
complete -c ntool -n '__ntool_at run-prefill' -l image -r -F -d 'Picture. May be repeated.'
complete -c ntool -n '__ntool_at run-prefill' -l task -x -a 'chat text-to-image image-edit images-only unconditional interleave' -d 'chat, text-to-image, image-edit, images-only, unconditional or interleave.'
complete -c ntool -n '__ntool_at run-prefill' -l system -x -d 'System text of the template.'
complete -c ntool -n '__ntool_at run-prefill' -l think -d 'Let the model think first.'
complete -c ntool -n '__ntool_at run-prefill' -l min-pixels -x -d 'Least pixels of a picture after resizing.'
complete -c ntool -n '__ntool_at run-prefill' -l max-pixels -x -d 'Most pixels of a picture after resizing.'
complete -c ntool -n '__ntool_at run-prefill' -l pad -x -d 'Token id in front of the shorter rows of a batch.'
complete -c ntool -n '__ntool_at run-prefill' -l decode -x -d 'Continue greedily by up to N tokens.'
complete -c ntool -n '__ntool_at run-prefill' -l raw -d 'With --decode: print the text alone.'
complete -c ntool -n '__ntool_at run-prefill' -l all-logits -d 'Logits of every position, not of the last alone.'
complete -c ntool -n '__ntool_at run-prefill' -l size -x -d 'Pixels of each picture; the last size repeats.'
complete -c ntool -n '__ntool_at run-prefill' -l steps -x -d 'Euler steps.'
complete -c ntool -n '__ntool_at run-prefill' -l cfg -x -d 'Guidance scale; 1 and below: none.'
complete -c ntool -n '__ntool_at run-prefill' -l img-cfg -x -d 'Guidance scale of the pictures; 1: none.'
complete -c ntool -n '__ntool_at run-prefill' -l cfg-norm -x -a 'none global channel cfg_zero_star' -d 'none, global, channel or cfg_zero_star.'
complete -c ntool -n '__ntool_at run-prefill' -l cfg-interval -x -d 'Guidance only for t in this range.'
complete -c ntool -n '__ntool_at run-prefill' -l shift -x -d 'Timestep shift, 0.001 to 1000; 1 is none.'
complete -c ntool -n '__ntool_at run-prefill' -l t-eps -x -d 'Floor of 1 - t in the velocity.'
complete -c ntool -n '__ntool_at run-prefill' -l seed -x -d 'Seed of the noise.'
complete -c ntool -n '__ntool_at run-prefill' -l rng -x -a 'portable torch-cpu' -d 'portable (the same noise on every machine) or torch-cpu.'
complete -c ntool -n '__ntool_at run-prefill' -l latent -r -F -d 'Start from its tensor \'noise\' or \'z\'.'
complete -c ntool -n '__ntool_at run-prefill' -l device -x -a 'auto cpu cuda' -d 'auto, cpu, cuda or cuda:INDEX.'
complete -c ntool -n '__ntool_at run-prefill' -l threads -x -d 'CPU threads; 0 takes all cores.'
complete -c ntool -n '__ntool_at run-prefill' -l low-memory -d 'Leave weights in their mapped files, however often used.'
complete -c ntool -n '__ntool_at run-prefill' -l output -s o -r -F -d 'Prefix file to write (safetensors); for task interleave the pictures\' name.'
complete -c ntool -n '__ntool_at run-prefill' -l format -x -a 'jsonl table csv tsv' -d 'Form of the records. Default: table on a terminal, else jsonl.'
complete -c ntool -n '__ntool_at run-prefill' -l progress -x -a 'auto always never plain json' -d 'Progress on stderr.'
complete -c ntool -n '__ntool_at run-prefill' -l quiet -s q -d 'No notes on stderr.'
complete -c ntool -n '__ntool_at run-prefill' -l verbose -s v -d 'Details and tracebacks on stderr.'
complete -c ntool -n '__ntool_at run-prefill' -l help -s h -d 'Show this message and exit.'
complete -c ntool -n '__ntool_at run-prefill 1 1' -r -F -a 'demo:shapes'

# sample-image
complete -c ntool -n '__ntool_at sample-image' -l output -s o -r -F -d 'Picture; - for standard output.'
complete -c ntool -n '__ntool_at sample-image' -l prompt -x -d 'Text, put into the task\'s template.'
complete -c ntool -n '__ntool_at sample-image' -l image -r -F -d 'Picture. May be repeated.'
complete -c ntool -n '__ntool_at sample-image' -l prompts -r -F -d 'JSON Lines of prompt, seed, size, output, ...; - for standard input.'
complete -c ntool -n '__ntool_at sample-image' -l messages -r -F -d 'Conversation: JSON list of role, text, images; - for standard input.'
complete -c ntool -n '__ntool_at sample-image' -l query -x -d 'Finished text with special tokens, taken as it is.'
complete -c ntool -n '__ntool_at sample-image' -l system -x -d 'System text of the template.'
complete -c ntool -n '__ntool_at sample-image' -l think -d 'Let the model think first.'
complete -c ntool -n '__ntool_at sample-image' -l min-pixels -x -d 'Least pixels of a picture after resizing.'
complete -c ntool -n '__ntool_at sample-image' -l max-pixels -x -d 'Most pixels of a picture after resizing.'
complete -c ntool -n '__ntool_at sample-image' -l prefix -r -F -d 'Prefix file of the prompt.'
complete -c ntool -n '__ntool_at sample-image' -l prefix-images-only -r -F -d 'Prefix file of the pictures alone.'
complete -c ntool -n '__ntool_at sample-image' -l prefix-unconditional -r -F -d 'Prefix file of the empty prompt.'
complete -c ntool -n '__ntool_at sample-image' -l size -x -d 'Pixels, multiples of 32.'
complete -c ntool -n '__ntool_at sample-image' -l fit -d 'Take the nearest valid size instead of refusing one.'
complete -c ntool -n '__ntool_at sample-image' -l steps -x -d 'Euler steps.'
complete -c ntool -n '__ntool_at sample-image' -l cfg -x -d 'Guidance scale; 1 and below: none.'
complete -c ntool -n '__ntool_at sample-image' -l img-cfg -x -d 'Guidance scale of the pictures; 1: none.'
complete -c ntool -n '__ntool_at sample-image' -l cfg-norm -x -a 'none global channel cfg_zero_star' -d 'none, global, channel or cfg_zero_star.'
complete -c ntool -n '__ntool_at sample-image' -l cfg-interval -x -d 'Guidance only for t in this range.'
complete -c ntool -n '__ntool_at sample-image' -l shift -x -d 'Timestep shift, 0.001 to 1000; 1 is none.'
complete -c ntool -n '__ntool_at sample-image' -l t-eps -x -d 'Floor of 1 - t in the velocity.'
complete -c ntool -n '__ntool_at sample-image' -l seed -x -d 'Seed of the noise.'
complete -c ntool -n '__ntool_at sample-image' -l count -x -d 'Pictures, with seeds in a row.'
complete -c ntool -n '__ntool_at sample-image' -l rng -x -a 'portable torch-cpu' -d 'portable (the same noise on every machine) or torch-cpu.'
complete -c ntool -n '__ntool_at sample-image' -l latent -r -F -d 'Start from its tensor \'noise\' or \'z\'.'
complete -c ntool -n '__ntool_at sample-image' -l save-latent -r -F -d 'Write the unit noise.'
complete -c ntool -n '__ntool_at sample-image' -l trace -r -F -d 'Write z, t and v of all steps.'
complete -c ntool -n '__ntool_at sample-image' -l sheet -r -F -d 'All pictures on one contact sheet.'
complete -c ntool -n '__ntool_at sample-image' -l preview -r -F -d 'Show the picture while it is drawn.'
complete -c ntool -n '__ntool_at sample-image' -l preview-every -x -d 'Steps between previews: 5.'
complete -c ntool -n '__ntool_at sample-image' -l no-metadata -d 'No recipe in the PNG.'
complete -c ntool -n '__ntool_at sample-image' -l device -x -a 'auto cpu cuda' -d 'auto, cpu, cuda or cuda:INDEX.'
complete -c ntool -n '__ntool_at sample-image' -l threads -x -d 'CPU threads; 0 takes all cores.'
complete -c ntool -n '__ntool_at sample-image' -l low-memory -d 'Leave weights in their mapped files, however often used.'
complete -c ntool -n '__ntool_at sample-image' -l plan -d 'Print the memory that the run needs, and stop.'
complete -c ntool -n '__ntool_at sample-image' -l format -x -a 'jsonl table csv tsv' -d 'Form of the records. Default: table on a terminal, else jsonl.'
complete -c ntool -n '__ntool_at sample-image' -l progress -x -a 'auto always never plain json' -d 'Progress on stderr.'
complete -c ntool -n '__ntool_at sample-image' -l quiet -s q -d 'No notes on stderr.'
complete -c ntool -n '__ntool_at sample-image' -l verbose -s v -d 'Details and tracebacks on stderr.'
complete -c ntool -n '__ntool_at sample-image' -l help -s h -d 'Show this message and exit.'
complete -c ntool -n '__ntool_at sample-image 1 1' -r -F -a 'demo:shapes'

# verify-package
complete -c ntool -n '__ntool_at verify-package' -l check -x -a 'layout.files layout.schema graph.parse graph.checker graph.types graph.standard graph.names graph.dead data.path data.bounds data.orphans data.hash weights.complete weights.values weights.sane dtype.policy flow.ports flow.tokens run.load run.support run.dynamic run.finite run.placement golden.values' -d 'Only these checks; globs. May be repeated.'
complete -c ntool -n '__ntool_at verify-package' -l skip -x -a 'layout.files layout.schema graph.parse graph.checker graph.types graph.standard graph.names graph.dead data.path data.bounds data.orphans data.hash weights.complete weights.values weights.sane dtype.policy flow.ports flow.tokens run.load run.support run.dynamic run.finite run.placement golden.values' -d 'Not these checks; globs. May be repeated.'
complete -c ntool -n '__ntool_at verify-package' -l standard-only -d 'Refuse operators of custom domains.'
complete -c ntool -n '__ntool_at verify-package' -l against -r -F -a 'demo:shapes' -d 'Compare every weight with this checkpoint.'
complete -c ntool -n '__ntool_at verify-package' -l golden -r -F -d 'Compare outputs with a file: arrays by names of ports, a prefix file, or a PNG with its recipe. May be repeated.'
complete -c ntool -n '__ntool_at verify-package' -l no-run -d 'Load and run nothing (skips run.* and golden.*).'
complete -c ntool -n '__ntool_at verify-package' -l write-manifest -d 'Write SHA256SUMS if all checks hold.'
complete -c ntool -n '__ntool_at verify-package' -l manifest -r -F -d 'Compare with this list of SHA-256 sums.'
complete -c ntool -n '__ntool_at verify-package' -l report -r -F -d 'Write what was found as one HTML page.'
complete -c ntool -n '__ntool_at verify-package' -l picture -r -F -d 'Show it on the page. May be repeated.'
complete -c ntool -n '__ntool_at verify-package' -l compact -x -d 'Write it anew without orphan bytes.'
complete -c ntool -n '__ntool_at verify-package' -l force -d 'Replace an existing output.'
complete -c ntool -n '__ntool_at verify-package' -l device -x -a 'auto cpu cuda' -d 'auto, cpu, cuda or cuda:INDEX.'
complete -c ntool -n '__ntool_at verify-package' -l timeout -x -d 'Longest time of one check. Default: 30 s, and more for large packages.'
complete -c ntool -n '__ntool_at verify-package' -l memory -x -d 'Most memory of the checks. Default: 4GiB and three times the package.'
complete -c ntool -n '__ntool_at verify-package' -l print-schema -d 'Print the schema of package.json.'
complete -c ntool -n '__ntool_at verify-package' -l format -x -a 'jsonl table csv tsv junit' -d 'Form of the records. Default: table on a terminal, else jsonl.'
complete -c ntool -n '__ntool_at verify-package' -l progress -x -a 'auto always never plain json' -d 'Progress on stderr.'
complete -c ntool -n '__ntool_at verify-package' -l quiet -s q -d 'No notes on stderr.'
complete -c ntool -n '__ntool_at verify-package' -l verbose -s v -d 'Details and tracebacks on stderr.'
complete -c ntool -n '__ntool_at verify-package' -l help -s h -d 'Show this message and exit.'
complete -c ntool -n '__ntool_at verify-package 1 1' -a '(__fish_complete_directories)'

# doctor
complete -c ntool -n '__ntool_at doctor' -l format -x -a 'jsonl table csv tsv' -d 'Form of the records. Default: table on a terminal, else jsonl.'
complete -c ntool -n '__ntool_at doctor' -l progress -x -a 'auto always never plain json' -d 'Progress on stderr.'
complete -c ntool -n '__ntool_at doctor' -l quiet -s q -d 'No notes on stderr.'
complete -c ntool -n '__ntool_at doctor' -l verbose -s v -d 'Details and tracebacks on stderr.'
complete -c ntool -n '__ntool_at doctor' -l help -s h -d 'Show this message and exit.'

# patchgen
complete -c ntool -n '__ntool_at patchgen' -l help -s h -d 'Show this message and exit.'
complete -c ntool -n '__ntool_at patchgen' -a contract -d 'Say which patches rest on something that changed between two versions of their source'
complete -c ntool -n '__ntool_at patchgen' -a check -d 'Compare committed modules with what their configs give now'
complete -c ntool -n '__ntool_at patchgen' -a list -d 'List the configs of the project, or those named, with what they patch and write'
complete -c ntool -n '__ntool_at patchgen' -a generate -d 'Write the patched modules of configs, each whole or not at all'

# patchgen contract
complete -c ntool -n '__ntool_at \'patchgen contract\'' -l old -x -a '(__fish_complete_directories)' -d 'The version patched so far: a folder of the import path, the package\'s own, or one with the file alone.'
complete -c ntool -n '__ntool_at \'patchgen contract\'' -l new -x -a '(__fish_complete_directories)' -d 'The version to come, in the same form.'
complete -c ntool -n '__ntool_at \'patchgen contract\'' -l config-name -s c -x -d 'Variable that is the PatchConfig.'
complete -c ntool -n '__ntool_at \'patchgen contract\'' -l static -d 'Read configs as syntax; run nothing of them.'
complete -c ntool -n '__ntool_at \'patchgen contract\'' -l allow -x -d 'Findings that are no errors here. May be repeated.'
complete -c ntool -n '__ntool_at \'patchgen contract\'' -l json -d 'As --format jsonl.'
complete -c ntool -n '__ntool_at \'patchgen contract\'' -l format -x -a 'jsonl table csv tsv' -d 'Form of the records. Default: table on a terminal, else jsonl.'
complete -c ntool -n '__ntool_at \'patchgen contract\'' -l progress -x -a 'auto always never plain json' -d 'Progress on stderr.'
complete -c ntool -n '__ntool_at \'patchgen contract\'' -l quiet -s q -d 'No notes on stderr.'
complete -c ntool -n '__ntool_at \'patchgen contract\'' -l verbose -s v -d 'Details and tracebacks on stderr.'
complete -c ntool -n '__ntool_at \'patchgen contract\'' -l help -s h -d 'Show this message and exit.'
complete -c ntool -n '__ntool_at \'patchgen contract\' 1 1' -r -F

# patchgen check
complete -c ntool -n '__ntool_at \'patchgen check\'' -l fix -d 'Write what differs.'
complete -c ntool -n '__ntool_at \'patchgen check\'' -l diff -d 'Diffs have to be there, not only to be right.'
complete -c ntool -n '__ntool_at \'patchgen check\'' -l ignore-version -d 'Versions in the header do not count.'
complete -c ntool -n '__ntool_at \'patchgen check\'' -l set -x -d 'Take the source module from this folder: as --new of contract.'
complete -c ntool -n '__ntool_at \'patchgen check\'' -l config-name -s c -x -d 'Variable that is the PatchConfig.'
complete -c ntool -n '__ntool_at \'patchgen check\'' -l static -d 'Read configs as syntax; run nothing of them.'
complete -c ntool -n '__ntool_at \'patchgen check\'' -l allow -x -d 'Findings that are no errors here. May be repeated.'
complete -c ntool -n '__ntool_at \'patchgen check\'' -l allow-duplicate -d 'As --allow duplicate-target: the last one wins.'
complete -c ntool -n '__ntool_at \'patchgen check\'' -l allow-findings -d 'Write in spite of errors; the exit code stays 1.'
complete -c ntool -n '__ntool_at \'patchgen check\'' -l json -d 'As --format jsonl.'
complete -c ntool -n '__ntool_at \'patchgen check\'' -l format -x -a 'jsonl table csv tsv' -d 'Form of the records. Default: table on a terminal, else jsonl.'
complete -c ntool -n '__ntool_at \'patchgen check\'' -l progress -x -a 'auto always never plain json' -d 'Progress on stderr.'
complete -c ntool -n '__ntool_at \'patchgen check\'' -l quiet -s q -d 'No notes on stderr.'
complete -c ntool -n '__ntool_at \'patchgen check\'' -l verbose -s v -d 'Details and tracebacks on stderr.'
complete -c ntool -n '__ntool_at \'patchgen check\'' -l help -s h -d 'Show this message and exit.'
complete -c ntool -n '__ntool_at \'patchgen check\' 1 9999' -r -F

# patchgen list
complete -c ntool -n '__ntool_at \'patchgen list\'' -l config-name -s c -x -d 'Variable that is the PatchConfig.'
complete -c ntool -n '__ntool_at \'patchgen list\'' -l static -d 'Read configs as syntax; run nothing of them.'
complete -c ntool -n '__ntool_at \'patchgen list\'' -l json -d 'As --format jsonl.'
complete -c ntool -n '__ntool_at \'patchgen list\'' -l format -x -a 'jsonl table csv tsv' -d 'Form of the records. Default: table on a terminal, else jsonl.'
complete -c ntool -n '__ntool_at \'patchgen list\'' -l progress -x -a 'auto always never plain json' -d 'Progress on stderr.'
complete -c ntool -n '__ntool_at \'patchgen list\'' -l quiet -s q -d 'No notes on stderr.'
complete -c ntool -n '__ntool_at \'patchgen list\'' -l verbose -s v -d 'Details and tracebacks on stderr.'
complete -c ntool -n '__ntool_at \'patchgen list\'' -l help -s h -d 'Show this message and exit.'
complete -c ntool -n '__ntool_at \'patchgen list\' 1 9999' -r -F

# patchgen generate
complete -c ntool -n '__ntool_at \'patchgen generate\'' -l output -s o -x -a '(__fish_complete_directories)' -d 'Write here, not beside the config.'
complete -c ntool -n '__ntool_at \'patchgen generate\'' -l stdout -d 'Write the module of one config to standard output.'
complete -c ntool -n '__ntool_at \'patchgen generate\'' -l diff -d 'Write the diff too; with --stdout only the diff.'
complete -c ntool -n '__ntool_at \'patchgen generate\'' -l fingerprint -d 'Keep in the header what the patches rest on, for check to say what changed.'
complete -c ntool -n '__ntool_at \'patchgen generate\'' -l set -x -d 'Take the source module from this folder: as --new of contract.'
complete -c ntool -n '__ntool_at \'patchgen generate\'' -l config-name -s c -x -d 'Variable that is the PatchConfig.'
complete -c ntool -n '__ntool_at \'patchgen generate\'' -l static -d 'Read configs as syntax; run nothing of them.'
complete -c ntool -n '__ntool_at \'patchgen generate\'' -l allow -x -d 'Findings that are no errors here. May be repeated.'
complete -c ntool -n '__ntool_at \'patchgen generate\'' -l allow-duplicate -d 'As --allow duplicate-target: the last one wins.'
complete -c ntool -n '__ntool_at \'patchgen generate\'' -l allow-findings -d 'Write in spite of errors; the exit code stays 1.'
complete -c ntool -n '__ntool_at \'patchgen generate\'' -l dry-run -d 'Check and plan; write nothing.'
complete -c ntool -n '__ntool_at \'patchgen generate\'' -l json -d 'As --format jsonl.'
complete -c ntool -n '__ntool_at \'patchgen generate\'' -l format -x -a 'jsonl table csv tsv' -d 'Form of the records. Default: table on a terminal, else jsonl.'
complete -c ntool -n '__ntool_at \'patchgen generate\'' -l progress -x -a 'auto always never plain json' -d 'Progress on stderr.'
complete -c ntool -n '__ntool_at \'patchgen generate\'' -l quiet -s q -d 'No notes on stderr.'
complete -c ntool -n '__ntool_at \'patchgen generate\'' -l verbose -s v -d 'Details and tracebacks on stderr.'
complete -c ntool -n '__ntool_at \'patchgen generate\'' -l help -s h -d 'Show this message and exit.'
complete -c ntool -n '__ntool_at \'patchgen generate\' 1 9999' -r -F

# completion
complete -c ntool -n '__ntool_at completion' -l format -x -a 'jsonl table csv tsv' -d 'Form of the records. Default: table on a terminal, else jsonl.'
complete -c ntool -n '__ntool_at completion' -l progress -x -a 'auto always never plain json' -d 'Progress on stderr.'
complete -c ntool -n '__ntool_at completion' -l quiet -s q -d 'No notes on stderr.'
complete -c ntool -n '__ntool_at completion' -l verbose -s v -d 'Details and tracebacks on stderr.'
complete -c ntool -n '__ntool_at completion' -l help -s h -d 'Show this message and exit.'
complete -c ntool -n '__ntool_at completion 1 1' -a 'bash zsh fish'
