{{/* RayClusterSpec of both kinds, with specOverrides, as Kubernetes spells it. Usage: $ → YAML map */}}
{{- define "llm-ray.clusterSpec" -}}
{{- $overrides := .Values.specOverrides -}}
{{- $groups := list -}}
{{- range $group := (include "llm-ray.groups" . | fromJson).groups -}}
{{- $spec := include "llm-ray.workerGroup" (list $ $group) | fromYaml -}}
{{- $groups = append $groups (include "llm-ray.override" (list $spec (index $overrides.workerGroups $group.name | default dict)) | fromYaml) -}}
{{- end -}}
{{- $head := include "llm-ray.override" (list (include "llm-ray.headGroup" . | fromYaml) $overrides.headGroup) | fromYaml -}}
{{- $cluster := merge (dict "headGroupSpec" $head "workerGroupSpecs" $groups) (include "llm-ray.clusterOptions" . | fromYaml) -}}
{{- $cluster = include "llm-ray.override" (list $cluster $overrides.rayCluster) | fromYaml -}}
{{- include "llm-ray.canonical" $cluster -}}
{{- toYaml $cluster -}}
{{- end -}}

{{/* Everything of the RayClusterSpec but the groups. Usage: $ → YAML map */}}
{{- define "llm-ray.clusterOptions" -}}
rayVersion: {{ include "llm-ray.rayVersion" . | quote }}
{{- if and (eq (include "llm-ray.kind" .) "RayCluster") (ne .Values.kuberay.version "1.5") }}
upgradeStrategy:
  type: {{ eq (include "llm-ray.rolloutStrategy" .) "recreate" | ternary "Recreate" "None" }}
{{- end }}
{{- with .Values.head.service.annotations }}
headServiceAnnotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .Values.auth.rayToken.enabled }}
authOptions:
  mode: token
  {{- if and .Values.auth.rayToken.existingSecret (ne .Values.kuberay.version "1.5") }}
  secretName: {{ .Values.auth.rayToken.existingSecret | quote }}
  {{- end }}
{{- end }}
{{- with include "llm-ray.gcsFaultTolerance" . | fromYaml }}
gcsFaultToleranceOptions:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if eq .Values.autoscaling.mode "serve" }}
enableInTreeAutoscaling: true
autoscalerOptions:
  version: v2
  idleTimeoutSeconds: {{ int .Values.autoscaling.serve.idleTimeoutSeconds }}
  upscalingMode: {{ .Values.autoscaling.serve.upscalingMode }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  resources:
    {{- include "llm-ray.overlay" (list dict .Values.autoscaling.serve.resources) | nindent 4 }}
  securityContext:
    {{- include "llm-ray.securityContext" (list . list) | nindent 4 }}
  volumeMounts:
    - {name: tmp, mountPath: /tmp}
    {{- include "llm-ray.autoscalerLogs" . | nindent 4 }}
    - {name: kube-api-access, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
{{- end }}
{{- end -}}

{{/* Ray's version in the image, which KubeRay acts on. Usage: $ */}}
{{- define "llm-ray.rayVersion" -}}
{{- index .Chart.Annotations "llm-ray.io/ray-version" -}}
{{- end -}}

{{/* Secret with Ray's token, or nothing; the operator names its own after the cluster. Usage: $ */}}
{{- define "llm-ray.rayTokenSecret" -}}
{{- if .Values.auth.rayToken.enabled -}}
{{- .Values.auth.rayToken.existingSecret | default (include "llm-ray.fullname" .) -}}
{{- end -}}
{{- end -}}

{{/* gcsFaultToleranceOptions, or nothing. Usage: $ → YAML map */}}
{{- define "llm-ray.gcsFaultTolerance" -}}
{{- $gcs := .Values.faultTolerance.gcs -}}
{{- if eq $gcs.type "redis" -}}
redisAddress: {{ $gcs.redis.address | quote }}
{{- with $gcs.redis.username }}
redisUsername: {value: {{ . | quote }}}
{{- end }}
{{- with $gcs.redis.existingSecret }}
redisPassword: {valueFrom: {secretKeyRef: {name: {{ . | quote }}, key: {{ $gcs.redis.key | quote }}}}}
{{- end }}
{{- with $gcs.redis.externalStorageNamespace }}
externalStorageNamespace: {{ . | quote }}
{{- end }}
{{- else if eq $gcs.type "rocksdb" -}}
backend: rocksdb
storage:
  size: {{ $gcs.rocksdb.size | quote }}
  {{- if not (kindIs "invalid" $gcs.rocksdb.storageClassName) }}
  storageClassName: {{ $gcs.rocksdb.storageClassName | quote }}
  {{- end }}
{{- end -}}
{{- end -}}

{{/* Ports of every Ray container. Usage: $ → YAML list */}}
{{- define "llm-ray.nodePorts" -}}
- {name: metrics, containerPort: 8080, protocol: TCP}
- {name: agent, containerPort: 52365, protocol: TCP}
- {name: serve, containerPort: {{ int .Values.serve.httpPort }}, protocol: TCP}
- {name: serve-grpc, containerPort: {{ int .Values.serve.grpcPort }}, protocol: TCP}
{{- end -}}

{{/*
Environment of every Ray container. On SIGTERM Ray drains its node: by its own defaults for at most 30 seconds, however long
replicas may take, and for at least 30 seconds, because a proxy stays that long even when it has nothing left to do.
Usage: (list $ GPUS) → env map
*/}}
{{- define "llm-ray.rayEnv" -}}
DS_ACCELERATOR: {{ gt (index . 1 | int) 0 | ternary "cuda" "cpu" }}
HF_HUB_OFFLINE: "1"
OMP_NUM_THREADS: "1"
RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S: {{ (index . 0).Values.serve.deployment.drainTimeoutS | toString | quote }}
RAY_SERVE_PROXY_MIN_DRAINING_PERIOD_S: "10"
TOKENIZERS_PARALLELISM: "false"
TRANSFORMERS_NO_ADVISORY_WARNINGS: "1"
{{- end -}}

{{/*
Ray's start parameters with what it shall count: as num-cpus and num-gpus, or as resources of the group where specOverrides
set those, because KubeRay refuses both. Usage: (list PARAMS (dict "CPU" "0") OVERRIDES) → YAML {rayStartParams, resources?}
*/}}
{{- define "llm-ray.rayCounts" -}}
{{- $params := index . 0 -}}
{{- $given := (index . 2).resources -}}
{{- $resources := dict -}}
{{- range $name, $count := index . 1 -}}
{{- if not $given -}}
{{- $params = merge (dict) $params (dict (printf "num-%ss" (lower $name)) $count) -}}
{{- else if not (or (hasKey $given $name) (hasKey $given (lower $name))) -}}
{{- $_ := set $resources $name $count -}}
{{- end -}}
{{- end -}}
{{- empty $given | ternary (dict "rayStartParams" $params) (dict "rayStartParams" $params "resources" $resources) | toYaml -}}
{{- end -}}
