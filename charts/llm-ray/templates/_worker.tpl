{{/* Worker pods: the ranks, the replicas and the proxies. */}}

{{/* One of workerGroupSpecs. Usage: (list $ GROUP) → YAML map */}}
{{- define "llm-ray.workerGroup" -}}
{{- $root := index . 0 -}}
{{- $group := index . 1 -}}
{{- $params := include "llm-ray.overlay" (list (dict "object-store-memory" ($group.spec.objectStoreMemory | int64 | toString)) $group.spec.rayStartParams) | fromYaml -}}
{{- $counts := dict -}}
{{- if not (kindIs "invalid" $group.spec.numGpus) -}}
{{- $_ := set $counts "GPU" ($group.spec.numGpus | int64 | toString) -}}
{{- else if and $group.spec.gpusPerNode (not (regexMatch "gpu$|^nvidia\\.com/mig-[0-9]+g\\.[0-9]+gb$" $group.spec.gpuResourceName)) -}}
{{- /* KubeRay counts no limits but these. */ -}}
{{- $_ := set $counts "GPU" (int $group.spec.gpusPerNode | toString) -}}
{{- end -}}
groupName: {{ $group.name | quote }}
{{- /* Left out only where someone else writes it: a RayService's own copy nobody writes, and a default in a list would drift. */}}
{{- if or (eq $root.Values.autoscaling.mode "fixed") (eq (include "llm-ray.kind" $root) "RayService") }}
replicas: {{ int $group.minReplicas }}
{{- end }}
minReplicas: {{ int $group.minReplicas }}
maxReplicas: {{ int $group.maxReplicas }}
numOfHosts: {{ int $group.hosts }}
scaleStrategy: {}
{{- if $group.spec.suspend }}
suspend: true
{{- end }}
{{- if and (eq $root.Values.autoscaling.mode "serve") $group.spec.idleTimeoutSeconds }}
idleTimeoutSeconds: {{ int $group.spec.idleTimeoutSeconds }}
{{- end }}
{{- with $group.spec.rayLabels }}
labels:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{ include "llm-ray.rayCounts" (list $params $counts (index $root.Values.specOverrides.workerGroups $group.name | default dict)) }}
template:
  {{- include "llm-ray.workerPod" . | nindent 2 }}
{{- end -}}

{{/* Pod template of a worker group. Usage: (list $ GROUP) → YAML map */}}
{{- define "llm-ray.workerPod" -}}
{{- $root := index . 0 -}}
{{- $group := index . 1 -}}
{{- $model := include "llm-ray.modelParts" (list $root $group.spec) | fromYaml -}}
{{- $env := include "llm-ray.envMap" (list (include "llm-ray.rayEnv" (list $root $group.gpus) | fromYaml)
  (include "llm-ray.observabilityEnv" $root | fromYaml) (include "llm-ray.fabricEnv" . | fromYaml) (include "llm-ray.gangEnv" . | fromYaml)) | fromYaml -}}
{{- $ray := dict "root" $root "name" "ray-worker" "spec" $group.spec "env" $env "ports" (include "llm-ray.nodePorts" $root | fromYamlArray)
  "resources" (include "llm-ray.workerResources" . | fromYaml) "capabilities" (include "llm-ray.fabricCapabilities" . | fromYamlArray)
  "mounts" $model.mounts "probes" (include "llm-ray.workerProbes" $root | fromYaml) -}}
{{- $pod := dict "root" $root "component" "worker" "group" $group.name "spec" $group.spec "labels" (dict "llm-ray.io/group" $group.name)
  "annotations" (include "llm-ray.fabricPodAnnotations" . | fromYaml) "shm" $group.shmSize "ray" (include "llm-ray.rayContainer" $ray | fromYaml)
  "initContainers" $model.initContainers "sidecars" (list (include "llm-ray.collectorContainer" (list $root "worker") | fromYaml))
  "volumes" (concat $model.volumes (include "llm-ray.collectorVolumes" $root | fromYamlArray)) -}}
{{- include "llm-ray.podTemplate" $pod -}}
{{- end -}}

{{/*
Resources of the Ray container: cpu is one per rank and replica unless given, GPUs and network devices are in requests and
limits, requests are the limits unless given. Usage: (list $ GROUP) → YAML map
*/}}
{{- define "llm-ray.workerResources" -}}
{{- $group := index . 1 -}}
{{- $given := include "llm-ray.overlay" (list dict $group.spec.resources) | fromYaml -}}
{{- $devices := include "llm-ray.fabricResources" . | fromYaml -}}
{{- if and (gt (int $group.spec.gpusPerNode) 0) (not $group.spec.resourceClaims) -}}
{{- $devices = merge (dict $group.spec.gpuResourceName (int $group.spec.gpusPerNode)) $devices -}}
{{- end -}}
{{- $limits := merge (dict) $devices ($given.limits | default dict) (dict "cpu" (int $group.cpus)) -}}
{{- $requests := merge (dict) $devices ($given.requests | default dict) $limits -}}
{{- $out := dict "limits" $limits "requests" $requests -}}
{{- with $given.claims | default (include "llm-ray.claimNames" $group.spec.resourceClaims | fromYamlArray) -}}
{{- $_ := set $out "claims" . -}}
{{- end -}}
{{- toYaml $out -}}
{{- end -}}

{{/* The container's side of a pod's DRA claims: all of them. Usage: CLAIMS → YAML list */}}
{{- define "llm-ray.claimNames" -}}
{{- $out := list -}}
{{- range . -}}
{{- $out = append $out (dict "name" .name) -}}
{{- end -}}
{{- toYaml $out -}}
{{- end -}}

{{/*
The raylet's health. KubeRay's own probe for a RayService also asks the Serve proxy, which a pod without a replica has not:
it would never be ready. Traffic goes by the deployer's label, not by readiness alone. Usage: $ → YAML map
*/}}
{{- define "llm-ray.workerProbes" -}}
startupProbe:
  {{- include "llm-ray.httpProbe" (list "/api/healthz" "agent" 5 5 60) | nindent 2 }}
readinessProbe:
  {{- include "llm-ray.httpProbe" (list "/api/healthz" "agent" 5 5 6) | nindent 2 }}
livenessProbe:
  {{- include "llm-ray.httpProbe" (list "/api/healthz" "agent" 10 10 30) | nindent 2 }}
{{- end -}}
