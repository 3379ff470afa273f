{{/* What follows from the intent: kinds, groups, counts. Every helper here returns JSON or one word and is called with $. */}}

{{/* RayCluster or RayService. */}}
{{- define "llm-ray.kind" -}}
{{- .Values.kind | default (eq .Values.autoscaling.mode "fixed" | ternary "RayCluster" "RayService") -}}
{{- end -}}

{{/* What an upgrade of the pod templates does. */}}
{{- define "llm-ray.rolloutStrategy" -}}
{{- .Values.rollout.strategy | default (eq (include "llm-ray.kind" .) "RayService" | ternary "blueGreen" "recreate") -}}
{{- end -}}

{{/* Ranks of one engine replica. */}}
{{- define "llm-ray.worldSize" -}}
{{- mul .Values.engine.tensorParallelSize .Values.engine.pipelineParallelSize -}}
{{- end -}}

{{/*
Where the ranks of a replica go: into one pod, if each pod holds all of them; where an autoscaler takes whole gangs away, into one
gang; else anywhere.
*/}}
{{- define "llm-ray.derivedPlacement" -}}
{{- $world := include "llm-ray.worldSize" . | int -}}
{{- $strategy := "STRICT_PACK" -}}
{{- range (include "llm-ray.groups" . | fromJson).groups -}}
{{- if lt (int .ranks) $world -}}
{{- $strategy = eq $.Values.autoscaling.mode "hpa" | ternary "GANG" "PACK" -}}
{{- end -}}
{{- end -}}
{{- $strategy -}}
{{- end -}}

{{/* The same, unless the values say otherwise. */}}
{{- define "llm-ray.placementStrategy" -}}
{{- .Values.serve.deployment.placementStrategy | default (include "llm-ray.derivedPlacement" .) -}}
{{- end -}}

{{/* What sets the number of Serve's replicas, unless the values say otherwise. */}}
{{- define "llm-ray.autoscalingPolicy" -}}
{{- .Values.serve.deployment.autoscalingPolicy | default (eq .Values.autoscaling.mode "hpa" | ternary "capacity" "requests") -}}
{{- end -}}

{{/*
The map SRC laid over DST as Helm lays values: maps merge, anything else replaces, false, 0 and [] count. null says nothing
and is left out, because Helm 3 keeps and Helm 4 drops it. Usage: (list DST SRC) → YAML
*/}}
{{- define "llm-ray.overlay" -}}
{{- $out := deepCopy (index . 0) -}}
{{- range $key, $value := index . 1 -}}
{{- if kindIs "map" $value -}}
{{- $below := index $out $key -}}
{{- $_ := set $out $key (include "llm-ray.overlay" (list (kindIs "map" $below | ternary $below dict) $value) | fromYaml) -}}
{{- else if not (kindIs "invalid" $value) -}}
{{- $_ := set $out $key $value -}}
{{- end -}}
{{- end -}}
{{- toYaml $out -}}
{{- end -}}

{{/*
The worker groups, sorted by name, as JSON {"groups": [...]}. Each has name, spec (workerDefaults with the group's own
keys), and the derived gpus, ranks (both per pod), hosts, engines (replicas per group of hosts), replicas, minReplicas,
maxReplicas, cpus and shmSize.
*/}}
{{- define "llm-ray.groups" -}}
{{- if not (hasKey . "llmRayGroups") -}}
{{- $groups := list -}}
{{- $given := .Values.workers | default (dict "worker" dict) -}}
{{- $defaults := include "llm-ray.overlay" (list dict .Values.workerDefaults) | fromYaml -}}
{{- range $name := keys $given | sortAlpha -}}
{{- $spec := include "llm-ray.overlay" (list $defaults (index $given $name | default dict)) | fromYaml -}}
{{- $groups = append $groups (include "llm-ray.group" (list $ $name $spec) | fromJson) -}}
{{- end -}}
{{- /* Kept: dozens of helpers ask, and working it out is a third of the time to render. */ -}}
{{- $_ := set . "llmRayGroups" (dict "groups" $groups | toJson) -}}
{{- end -}}
{{- .llmRayGroups -}}
{{- end -}}

{{/* One element of llm-ray.groups. Usage: (list $ NAME SPEC) */}}
{{- define "llm-ray.group" -}}
{{- $root := index . 0 -}}
{{- $spec := index . 2 -}}
{{- $world := include "llm-ray.worldSize" $root | int -}}
{{- $gpus := kindIs "invalid" $spec.numGpus | ternary $spec.gpusPerNode $spec.numGpus | int -}}
{{- $perRank := kindIs "invalid" $root.Values.engine.numGpusPerRank | ternary 1.0 $root.Values.engine.numGpusPerRank | float64 -}}
{{- $ranks := $world -}}
{{- if $spec.ranksPerNode -}}
{{- $ranks = int $spec.ranksPerNode -}}
{{- else if and $gpus (gt $perRank 0.0) -}}
{{- $ranks = floor (divf $gpus $perRank) | int -}}
{{- else if $spec.numOfHosts -}}
{{- $ranks = ceil (divf $world $spec.numOfHosts) | int -}}
{{- end -}}
{{- $hosts := $spec.numOfHosts | default (ceil (divf $world (max $ranks 1))) | int -}}
{{- $engines := div (mul $ranks $hosts) $world | int -}}
{{- $enginesPerHost := max 1 (div $ranks $world) -}}
{{- $cpus := addf (mulf $ranks $root.Values.engine.numCpusPerRank) (mulf $enginesPerHost $root.Values.serve.deployment.replicaNumCpus) -}}
{{- $replicas := int $spec.replicas -}}
{{- $min := $replicas -}}
{{- $max := $replicas -}}
{{- if ne $root.Values.autoscaling.mode "fixed" -}}
{{- $min = kindIs "invalid" $spec.minReplicas | ternary $replicas $spec.minReplicas | int -}}
{{- $max = kindIs "invalid" $spec.maxReplicas | ternary (max $replicas $min) $spec.maxReplicas | int -}}
{{- end -}}
{{- $shm := div (add (int64 $spec.objectStoreMemory) (mul $ranks 1073741824)) 1048576 -}}
{{- dict "name" (index . 1) "spec" $spec "gpus" $gpus "ranks" $ranks "hosts" $hosts "engines" $engines "replicas" $replicas
  "minReplicas" $min "maxReplicas" $max "cpus" (ceil $cpus | int) "shmSize" ($spec.shmSize | default (printf "%dMi" $shm)) | toJson -}}
{{- end -}}

{{/*
Totals as JSON: world, minEngines and maxEngines (Serve replicas), workers (pods KubeRay makes at first), gangPods (those
and the head), gpus (of all these pods).
*/}}
{{- define "llm-ray.totals" -}}
{{- $minEngines := 0 -}}
{{- $maxEngines := 0 -}}
{{- $workers := 0 -}}
{{- $gpus := 0 -}}
{{- range (include "llm-ray.groups" . | fromJson).groups -}}
{{- if not .spec.suspend -}}
{{- $minEngines = add $minEngines (mul .minReplicas .engines) -}}
{{- $maxEngines = add $maxEngines (mul .maxReplicas .engines) -}}
{{- $workers = add $workers (mul .minReplicas .hosts) -}}
{{- $gpus = add $gpus (mul .minReplicas .hosts .gpus) -}}
{{- end -}}
{{- end -}}
{{- dict "world" (include "llm-ray.worldSize" . | int) "minEngines" $minEngines "maxEngines" $maxEngines "workers" $workers
  "gangPods" (add 1 $workers) "gpus" $gpus | toJson -}}
{{- end -}}
