{{/* Whether ranks, GPUs and CPUs fit the pods. Usage: $ */}}
{{- define "llm-ray.validate.topology" -}}
{{- $root := . -}}
{{- $groups := (include "llm-ray.groups" . | fromJson).groups -}}
{{- $gpus := 0 -}}
{{- range $groups -}}
{{- $gpus = max $gpus (int .gpus) -}}
{{- end -}}
{{- $perRank := kindIs "invalid" .Values.engine.numGpusPerRank | ternary (min $gpus 1) .Values.engine.numGpusPerRank | float64 -}}
{{- range $groups -}}
{{- include "llm-ray.validate.ranks" (list $root .) -}}
{{- include "llm-ray.validate.gpus" (list $root . $perRank) -}}
{{- include "llm-ray.validate.cpus" (list $root .) -}}
{{- include "llm-ray.validate.counts" (list $root .) -}}
{{- end -}}
{{- end -}}

{{/* A pod holds whole engines, or hosts hold one engine together. Usage: (list $ GROUP) */}}
{{- define "llm-ray.validate.ranks" -}}
{{- $engine := (index . 0).Values.engine -}}
{{- $world := include "llm-ray.worldSize" (index . 0) | int -}}
{{- $strategy := (index . 0).Values.serve.deployment.placementStrategy -}}
{{- with index . 1 -}}
{{- $ranks := int .ranks -}}
{{- $hosts := int .hosts -}}
{{- if lt $ranks 1 -}}
{{- include "llm-ray.refuse" (list "engine.numGpusPerRank" $engine.numGpusPerRank (printf "be at most the %d GPUs of a pod of workers.%s" (int .gpus) .name) "lower it, or raise gpusPerNode") -}}
{{- else if not (or (eq (mod $ranks $world) 0) (and (eq (mod $world $ranks) 0) (eq (mod (mul $ranks $hosts) $world) 0))) -}}
{{- $fit := 1 -}}
{{- range $n := untilStep 1 (add1 (min $ranks $world 4096) | int) 1 -}}
{{- $fit = eq (mod $world $n) 0 | ternary $n $fit -}}
{{- end -}}
{{- $fit = ge $ranks $world | ternary (sub $ranks (mod $ranks $world)) $fit | int -}}
{{- if not (or .spec.ranksPerNode .spec.numOfHosts) -}}
{{- include "llm-ray.refuse" (list (printf "workers.%s.gpusPerNode" .name) (int .gpus) (printf "divide, or be a multiple of, the engine's %d ranks (engine.tensorParallelSize × pipelineParallelSize)" $world) (printf "set it, or ranksPerNode, to %d, or change the engine's sizes" $fit)) -}}
{{- else -}}
{{- include "llm-ray.refuse" (list (printf "workers.%s.ranksPerNode × numOfHosts" .name) (printf "%d × %d" $ranks $hosts) (printf "hold whole engines of engine.tensorParallelSize × pipelineParallelSize = %d ranks, none cut across pods of another" $world) (printf "set workers.%s.ranksPerNode to %d and leave numOfHosts null, or change the engine's sizes" .name $fit)) -}}
{{- end -}}
{{- else if and (lt $ranks $world) (eq ($strategy | default "") "STRICT_PACK") -}}
{{- include "llm-ray.refuse" (list "serve.deployment.placementStrategy" $strategy (printf "be PACK, or GANG with autoscaling.mode hpa, when an engine of %d ranks spans %d pods of workers.%s" $world (div $world $ranks) .name) "leave it null") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Usage: (list $ GROUP GPUS_PER_RANK) */}}
{{- define "llm-ray.validate.gpus" -}}
{{- $perRank := index . 2 -}}
{{- with index . 1 -}}
{{- $needed := mulf .ranks $perRank -}}
{{- $key := kindIs "invalid" .spec.numGpus | ternary "gpusPerNode" "numGpus" -}}
{{- if and (ge (int .ranks) 1) (gt $needed (float64 .gpus)) -}}
{{- include "llm-ray.refuse" (list (printf "workers.%s.%s" .name $key) (int .gpus) (printf "be at least %v for %d ranks of engine.numGpusPerRank %v each" $needed (int .ranks) $perRank) "raise it, or lower ranksPerNode; ranks of all groups are alike") -}}
{{- end -}}
{{- $group := . -}}
{{- range $section := list "requests" "limits" -}}
{{- $given := index (index $group.spec.resources $section | default dict) $group.spec.gpuResourceName -}}
{{- if not (kindIs "invalid" $given) -}}
{{- if ne (include "llm-ray.milli" $given | int64) (mul $group.spec.gpusPerNode 1000 | int64) -}}
{{- include "llm-ray.refuse" (list (printf "workers.%s.resources.%s.%s" $group.name $section $group.spec.gpuResourceName) (toString $given) (printf "equal workers.%s.gpusPerNode (%d), from which ranks and Ray's GPUs are counted" $group.name (int $group.spec.gpusPerNode)) "take it out, and set gpusPerNode") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .spec.resourceClaims (kindIs "invalid" .spec.numGpus) -}}
{{- include "llm-ray.refuse" (list (printf "workers.%s.numGpus" .name) nil "say how many GPUs resourceClaims bring, because KubeRay does not count claims" "set it to that number") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What Ray sees as CPUs is rayStartParams.num-cpus, else the limit rounded up. Usage: (list $ GROUP) */}}
{{- define "llm-ray.validate.cpus" -}}
{{- $values := (index . 0).Values -}}
{{- $world := include "llm-ray.worldSize" (index . 0) | int -}}
{{- with index . 1 -}}
{{- $engines := max 1 (div .ranks $world) -}}
{{- $needed := addf (mulf .ranks $values.engine.numCpusPerRank) (mulf $engines $values.serve.deployment.replicaNumCpus) -}}
{{- $why := printf "be at least %v: %d × engine.numCpusPerRank (%v) and %d × serve.deployment.replicaNumCpus (%v)" $needed (int .ranks) $values.engine.numCpusPerRank $engines $values.serve.deployment.replicaNumCpus -}}
{{- $limit := (.spec.resources.limits | default dict).cpu -}}
{{- $param := index .spec.rayStartParams "num-cpus" -}}
{{- if not (kindIs "invalid" $param) -}}
{{- if lt (float64 $param) (maxf $needed 1.0) -}}
{{- include "llm-ray.refuse" (list (printf "workers.%s.rayStartParams.num-cpus" .name) $param $why "leave it out: it follows from the CPU limit") -}}
{{- end -}}
{{- else if not (kindIs "invalid" $limit) -}}
{{- if lt (divf (include "llm-ray.milli" $limit | float64) 1000 | ceil) $needed -}}
{{- include "llm-ray.refuse" (list (printf "workers.%s.resources.limits.cpu" .name) (toString $limit) $why "raise it, or set it to null, which is enough") -}}
{{- end -}}
{{- end -}}
{{- $request := (.spec.resources.requests | default dict).cpu -}}
{{- if and (kindIs "invalid" $limit) (not (kindIs "invalid" $request)) -}}
{{- if gt (include "llm-ray.milli" $request | int64) (mul .cpus 1000 | int64) -}}
{{- include "llm-ray.refuse" (list (printf "workers.%s.resources.requests.cpu" .name) (toString $request) (printf "be at most its limit (%d), which follows from ranks and replicas" (int .cpus)) "lower it, or raise the limit by resources.limits.cpu") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Usage: (list $ GROUP) */}}
{{- define "llm-ray.validate.counts" -}}
{{- $mode := (index . 0).Values.autoscaling.mode -}}
{{- with index . 1 -}}
{{- if gt (int .minReplicas) (int .maxReplicas) -}}
{{- include "llm-ray.refuse" (list (printf "workers.%s.minReplicas" .name) (int .minReplicas) (printf "be at most maxReplicas (%d)" (int .maxReplicas)) "raise maxReplicas, or lower minReplicas") -}}
{{- end -}}
{{- if and .spec.suspend (ne $mode "fixed") -}}
{{- include "llm-ray.refuse" (list (printf "workers.%s.suspend" .name) true (printf "be false with autoscaling.mode %s, whose owner of the counts would bring the pods back" $mode) "set autoscaling.mode to fixed, or leave the group out") -}}
{{- end -}}
{{- if and (not (kindIs "invalid" .spec.idleTimeoutSeconds)) (ne $mode "serve") -}}
{{- include "llm-ray.refuse" (list (printf "workers.%s.idleTimeoutSeconds" .name) .spec.idleTimeoutSeconds (printf "be null with autoscaling.mode %s: only Ray's autoscaler knows idle groups" $mode) "take it out, or set autoscaling.mode to serve") -}}
{{- end -}}
{{- end -}}
{{- end -}}
