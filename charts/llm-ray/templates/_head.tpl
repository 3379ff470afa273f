{{/* The head pod: Ray's control plane, the deployer, and ranks only when head.numCpus says so. */}}

{{/* headGroupSpec of the cluster. Usage: $ → YAML map */}}
{{- define "llm-ray.headGroup" -}}
{{- $head := include "llm-ray.overlay" (list dict .Values.head) | fromYaml -}}
{{- $params := include "llm-ray.overlay" (list (dict "object-store-memory" ($head.objectStoreMemory | int64 | toString)) $head.rayStartParams) | fromYaml -}}
{{- $counts := dict "CPU" ($head.numCpus | int64 | toString) -}}
serviceType: {{ $head.service.type }}
{{- with $head.rayLabels }}
labels:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{ include "llm-ray.rayCounts" (list $params $counts .Values.specOverrides.headGroup) }}
template:
  {{- include "llm-ray.headPod" . | nindent 2 }}
{{- end -}}

{{/* Pod template of the head. Usage: $ → YAML map */}}
{{- define "llm-ray.headPod" -}}
{{- $head := include "llm-ray.overlay" (list dict .Values.head) | fromYaml -}}
{{- $model := dict "mounts" list "initContainers" list "volumes" list -}}
{{- if gt (int $head.numCpus) 0 -}}
{{- $model = include "llm-ray.modelParts" (list . $head) | fromYaml -}}
{{- end -}}
{{- $mounts := concat $model.mounts (include "llm-ray.autoscalerLogs" . | fromYamlArray) -}}
{{- $shm := printf "%dMi" (div (add (int64 $head.objectStoreMemory) 67108864 (gt (int $head.numCpus) 0 | ternary 1073741824 0)) 1048576) -}}
{{- $ray := dict "root" . "name" "ray-head" "spec" $head "ports" (include "llm-ray.headPorts" . | fromYamlArray)
  "env" (include "llm-ray.envMap" (list (include "llm-ray.rayEnv" (list . 0) | fromYaml) (include "llm-ray.observabilityEnv" . | fromYaml)) | fromYaml)
  "resources" $head.resources "capabilities" list "mounts" $mounts "probes" (include "llm-ray.headProbes" . | fromYaml) -}}
{{- $pod := dict "root" . "component" "head" "group" "headgroup" "spec" $head "labels" dict "annotations" dict "shm" $shm
  "ray" (include "llm-ray.rayContainer" $ray | fromYaml) "initContainers" $model.initContainers
  "sidecars" (list (include "llm-ray.deployerContainer" . | fromYaml) (include "llm-ray.collectorContainer" (list . "head") | fromYaml))
  "volumes" (concat $model.volumes (include "llm-ray.headVolumes" . | fromYamlArray) (include "llm-ray.collectorVolumes" . | fromYamlArray)) -}}
{{- include "llm-ray.podTemplate" $pod -}}
{{- end -}}

{{/* Ports of the head's Ray container; KubeRay gives the head's Service exactly these. Usage: $ → YAML list */}}
{{- define "llm-ray.headPorts" -}}
- {name: gcs-server, containerPort: 6379, protocol: TCP}
- {name: dashboard, containerPort: 8265, protocol: TCP}
- {name: client, containerPort: 10001, protocol: TCP}
- {name: as-metrics, containerPort: 44217, protocol: TCP}
- {name: dash-metrics, containerPort: 44227, protocol: TCP}
{{ include "llm-ray.nodePorts" . }}
{{- end -}}

{{/* Ready is the dashboard with a living GCS: deployer and operator talk to it. Alive is raylet and GCS. Usage: $ → YAML map */}}
{{- define "llm-ray.headProbes" -}}
startupProbe:
  {{- include "llm-ray.httpProbe" (list "/api/gcs_healthz" "dashboard" 5 5 60) | nindent 2 }}
readinessProbe:
  {{- include "llm-ray.httpProbe" (list "/api/gcs_healthz" "dashboard" 5 5 6) | nindent 2 }}
livenessProbe:
  {{- include "llm-ray.httpProbe" (list "/api/healthz" "agent" 10 10 30) | nindent 2 }}
{{- end -}}

{{/* Volumes of the deployer (and of Ray's autoscaler): the Serve config, and the token of the API server. Usage: $ → YAML list */}}
{{- define "llm-ray.headVolumes" -}}
{{- if eq (include "llm-ray.kind" .) "RayCluster" }}
- name: serve-config
  configMap: {name: {{ include "llm-ray.componentName" (list . "serve") }}}
{{- end }}
- name: kube-api-access
  projected:
    sources:
      - serviceAccountToken: {path: token, expirationSeconds: 3607}
      - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
      - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
{{- end -}}

{{/* The sidecar that applies the Serve config and labels the pods that serve. Usage: $ → YAML map */}}
{{- define "llm-ray.deployerContainer" -}}
{{- $kind := include "llm-ray.kind" . -}}
{{- $env := dict "POD_NAMESPACE" (dict "valueFrom" (dict "fieldRef" (dict "fieldPath" "metadata.namespace")))
  "RAY_CLUSTER" (dict "valueFrom" (dict "fieldRef" (dict "fieldPath" "metadata.labels['ray.io/cluster']"))) -}}
{{- if eq $kind "RayService" -}}
{{- $_ := set $env "RAY_SERVICE" (include "llm-ray.fullname" .) -}}
{{- end -}}
{{- with include "llm-ray.rayTokenSecret" . -}}
{{- $_ := set $env "RAY_AUTH_MODE" "token" -}}
{{- $_ := set $env "RAY_AUTH_TOKEN" (dict "valueFrom" (dict "secretKeyRef" (dict "name" . "key" "auth_token"))) -}}
{{- end -}}
name: deployer
image: {{ include "llm-ray.image" (list . .Values.image) }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
command: [tini, --, llm-ray, deployer]
args:
  - --kind={{ $kind }}
  {{- if eq $kind "RayCluster" }}
  - --config=/etc/llm-ray/serve/config.yaml
  {{- end }}
  {{- if .Values.serve.excludeHead }}
  - --exclude-head
  {{- end }}
  {{- if eq (include "llm-ray.rolloutStrategy" .) "incremental" }}
  - --incremental
  {{- end }}
  {{- if eq .Values.autoscaling.mode "hpa" }}
  - --report-idle
  - --serve-port={{ int .Values.serve.httpPort }}
  {{- end }}
  - --health-port={{ int .Values.deployer.healthPort }}
ports:
  - {name: deployer, containerPort: {{ int .Values.deployer.healthPort }}, protocol: TCP}
env:
  {{- include "llm-ray.env" $env | nindent 2 }}
resources:
  {{- include "llm-ray.overlay" (list dict .Values.deployer.resources) | nindent 2 }}
readinessProbe:
  {{- include "llm-ray.httpProbe" (list "/healthz" "deployer" 10 5 3) | nindent 2 }}
livenessProbe:
  {{- include "llm-ray.httpProbe" (list "/healthz" "deployer" 10 5 12) | nindent 2 }}
securityContext:
  {{- include "llm-ray.securityContext" (list . list) | nindent 2 }}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  {{- if eq $kind "RayCluster" }}
  - {name: serve-config, mountPath: /etc/llm-ray/serve, readOnly: true}
  {{- end }}
  - {name: kube-api-access, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
{{- end -}}

{{/*
Where Ray's autoscaler and the head share logs. KubeRay would mount a volume of its own there, which no other container sees.
Usage: $ → YAML list of mounts
*/}}
{{- define "llm-ray.autoscalerLogs" -}}
{{- if eq .Values.autoscaling.mode "serve" -}}
- {name: tmp, mountPath: /tmp/ray, subPath: ray}
{{- else -}}
[]
{{- end -}}
{{- end -}}
