{{/* The controller's pod. */}}

{{/* Usage: $ → YAML map */}}
{{- define "llm-ray-scaler.podTemplate" -}}
{{- $spec := .Values.scaler -}}
metadata:
  labels:
    {{- merge (dict) (include "llm-ray-scaler.selectorLabels" . | fromYaml) (include "llm-ray-scaler.overlay" (list dict $spec.podLabels) | fromYaml) | toYaml | nindent 4 }}
  {{- with include "llm-ray-scaler.overlay" (list dict $spec.podAnnotations) | fromYaml }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "llm-ray-scaler.serviceAccountName" . | quote }}
  automountServiceAccountToken: true
  enableServiceLinks: false
  # Long enough to give the lease back, so that another pod leads at once.
  terminationGracePeriodSeconds: 30
  securityContext:
    {{- include "llm-ray-scaler.overlay" (list dict .Values.security.podSecurityContext) | nindent 4 }}
  {{- with include "llm-ray-scaler.placement" . | fromYaml }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- with include "llm-ray-scaler.imagePullSecrets" . }}
  {{- . | nindent 2 }}
  {{- end }}
  containers:
    - {{- include "llm-ray-scaler.container" . | nindent 6 }}
  volumes:
    - name: tmp
      emptyDir: {sizeLimit: 64Mi}
{{- end -}}

{{/* Usage: $ → YAML map */}}
{{- define "llm-ray-scaler.container" -}}
name: scaler
image: {{ include "llm-ray-scaler.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
command: [tini, --, llm-ray, scaler]
args:
  {{- range .Values.watchNamespaces }}
  - --namespace={{ . }}
  {{- end }}
  - --lease-name={{ include "llm-ray-scaler.fullname" . }}
  - --health-port={{ int .Values.scaler.healthPort }}
  - --log-level={{ .Values.scaler.logLevel }}
ports:
  - {name: health, containerPort: {{ int .Values.scaler.healthPort }}, protocol: TCP}
env:
  {{- include "llm-ray-scaler.env" . | nindent 2 }}
resources:
  {{- include "llm-ray-scaler.overlay" (list dict .Values.scaler.resources) | nindent 2 }}
startupProbe:
  httpGet: {path: /healthz, port: health}
  periodSeconds: 2
  failureThreshold: 30
readinessProbe:
  httpGet: {path: /readyz, port: health}
  periodSeconds: 5
  timeoutSeconds: 5
livenessProbe:
  httpGet: {path: /healthz, port: health}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
securityContext:
  {{- include "llm-ray-scaler.overlay" (list dict .Values.security.containerSecurityContext) | nindent 2 }}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
{{- end -}}

{{/* Environment, sorted by name. Usage: $ → YAML list */}}
{{- define "llm-ray-scaler.env" -}}
{{- $all := dict "POD_NAMESPACE" (dict "valueFrom" (dict "fieldRef" (dict "apiVersion" "v1" "fieldPath" "metadata.namespace"))) -}}
{{- range $name, $value := .Values.scaler.env -}}
{{- if not (kindIs "invalid" $value) -}}
{{- $_ := set $all $name (kindIs "map" $value | ternary $value (dict "value" (toString $value))) -}}
{{- end -}}
{{- end -}}
{{- $out := list -}}
{{- range $name := keys $all | sortAlpha -}}
{{- $out = append $out (merge (dict "name" $name) (index $all $name)) -}}
{{- end -}}
{{- toYaml $out -}}
{{- end -}}

{{/* Where the pods run: several of them on different nodes, if that can be. Usage: $ → YAML map */}}
{{- define "llm-ray-scaler.placement" -}}
{{- $spec := .Values.scaler -}}
{{- $apart := dict "weight" 100 "podAffinityTerm" (dict "topologyKey" "kubernetes.io/hostname"
  "labelSelector" (dict "matchLabels" (include "llm-ray-scaler.selectorLabels" . | fromYaml))) -}}
{{- $out := dict -}}
{{- if and (kindIs "invalid" $spec.affinity) (gt (int $spec.replicas) 1) -}}
{{- $_ := set $out "affinity" (dict "podAntiAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" (list $apart))) -}}
{{- end -}}
{{- range $key := list "affinity" "nodeSelector" "priorityClassName" "tolerations" "topologySpreadConstraints" -}}
{{- with index $spec $key -}}
{{- $_ := set $out $key . -}}
{{- end -}}
{{- end -}}
{{- toYaml $out -}}
{{- end -}}
